/** From a file that somebody else has to a file under its final name, which is there whole or not at all. */
import { createHash } from "node:crypto";
import { mkdir, readdir, rename, stat } from "node:fs/promises";
import path from "node:path";
import { SourceUnavailableError, StorageFullError, isModelSupervisorError } from "../../../errors.js";
import { openPartFolder } from "./part-folder.js";
import type { RemoteFile } from "./remote-file.js";
import type { Asked } from "./requests.js";
import { share } from "./shared-work.js";
import { ContentError, PART_NAME, freeBytes, storageError, transfer } from "./transfer.js";

/** A file of a set, and where it is to be. */
export interface Wanted {
  readonly file: RemoteFile;
  readonly target: string;
}

/** What the library notes at the end of a part, and folders. */
const SPARE_BYTES = 1 << 20;

/**
 * Brings all files of a set, one after the other; those that are there are left as they are. One file is downloaded once,
 * however many want it at the same time.
 * @param onProgress called with the share of all bytes that is here, 0 to 1.
 * @throws SourceUnavailableError, StorageFullError, or the signal's reason, at once.
 */
export async function downloadAll(
  wanted: readonly Wanted[],
  asked: Asked,
  onProgress: ((fraction: number) => void) | undefined,
): Promise<void> {
  const total = wanted.reduce((sum, { file }) => sum + file.sizeBytes, 0);
  let before = 0;
  for (const [index, each] of wanted.entries()) {
    const { sizeBytes } = each.file;
    const following = wanted.slice(index + 1);
    const onBytes = (bytes: number) => onProgress?.((before + Math.min(bytes, sizeBytes)) / total);
    await share(each.target, asked.signal, onBytes, (signal, onShared) =>
      download(each, following, { ...asked, signal }, onShared).catch(async (error: unknown) => {
        signal.throwIfAborted();
        throw await typedError(error, each.target, sizeBytes, asked);
      }),
    );
    before += sizeBytes;
    onProgress?.(before / total);
  }
}

async function download(
  { file, target }: Wanted,
  following: readonly Wanted[],
  { source, settings, signal }: Asked,
  onBytes: (bytes: number) => void,
): Promise<void> {
  if (await exists(target)) return;
  const parent = path.join(settings.modelsDir, ".incomplete");
  const state = [file.url.href, file.sha256, file.etag, file.sizeBytes].join("\n");
  const key = createHash("sha256").update(state).digest("hex").slice(0, 32);
  const part = await openPartFolder(parent, key, file.sha256 !== undefined);
  try {
    await checkRoom(file.sizeBytes - (await bytesIn(part.path)), following, part.path);
    await transfer({ source, file, directory: part.path, settings, signal, onBytes });
    await mkdir(path.dirname(target), { recursive: true });
    signal.throwIfAborted();
    await rename(path.join(part.path, PART_NAME), target);
  } catch (error) {
    await (error instanceof ContentError ? part.remove() : part.keep());
    throw error;
  }
  await part.remove();
}

/** Before the first byte, for what is to come of the whole set: a disk that is full in the end helps nobody. */
async function checkRoom(missing: number, following: readonly Wanted[], directory: string): Promise<void> {
  let requiredBytes = missing + SPARE_BYTES;
  for (const { file, target } of following) requiredBytes += (await exists(target)) ? 0 : file.sizeBytes;
  const availableBytes = await freeBytes(directory);
  if (requiredBytes > availableBytes) throw new StorageFullError({ pathKind: "models", requiredBytes, availableBytes });
}

/** What the parts in the folder really take: the library leaves gaps. */
async function bytesIn(folder: string): Promise<number> {
  const sizes = (await readdir(folder)).map(async (name) => {
    const { blocks, size } = await stat(path.join(folder, name));
    return Math.min(size, blocks * 512);
  });
  return (await Promise.all(sizes)).reduce((sum, bytes) => sum + bytes, 0);
}

function exists(file: string): Promise<boolean> {
  return stat(file).then(
    () => true,
    () => false,
  );
}

/** The file system's own errors, in our words. */
export async function typedError(
  error: unknown,
  file: string,
  requiredBytes: number,
  { source, settings }: Asked,
): Promise<unknown> {
  if (isModelSupervisorError(error) || !(error instanceof Error) || !("code" in error)) return error;
  return (
    (await storageError(error.code, settings.modelsDir, requiredBytes)) ??
    new SourceUnavailableError(
      source,
      `"${path.basename(file)}" cannot be written to the models folder (${error.message})`,
      error,
    )
  );
}
