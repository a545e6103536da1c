/** Damaged copies of model files, one for each way in which a download or a disk goes wrong. */
import { copyFile, open, type FileHandle } from "node:fs/promises";
import { requireChoice } from "./options.js";

/** All kinds of damage. A model with `"nan-weights"` loads, unless the loader is told to check its tensors. */
export const corruptions = ["cut-data", "cut-header", "wrong-magic", "wrong-version", "empty", "nan-weights"] as const;
export type Corruption = (typeof corruptions)[number];

const damages: Record<Corruption, (handle: FileHandle, size: number) => Promise<unknown>> = {
  "cut-data": (handle, size) => handle.truncate(Math.floor(size * 0.6)),
  // behind the counts, within the first metadata entries
  "cut-header": (handle) => handle.truncate(700),
  "wrong-magic": (handle) => handle.write("XXXX", 0),
  "wrong-version": (handle) => handle.write(Uint8Array.of(99, 0, 0, 0), 0, 4, 4),
  empty: (handle) => handle.truncate(0),
  // all bits set is NaN as a float of 16 and of 32 bits
  "nan-weights": (handle, size) => handle.write(new Uint8Array(4096).fill(0xff), 0, 4096, alignedDown(size / 2)),
};

/**
 * Writes a damaged copy of a model file; returns its path. For a missing tensor use the makers' option `omitTensor`.
 *
 * @throws TypeError if `kind` is not one of {@link corruptions}.
 */
export async function corruptFile(kind: Corruption, from: string, to: string): Promise<string> {
  requireChoice("kind", kind, damages);
  await copyFile(from, to);
  const handle = await open(to, "r+");
  try {
    const { size } = await handle.stat();
    await damages[kind](handle, size);
  } finally {
    await handle.close();
  }
  return to;
}

const alignedDown = (offset: number): number => Math.floor(offset / 32) * 32;
