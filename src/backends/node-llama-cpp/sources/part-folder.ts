/**
 * The folder that a download is written into until it is whole. A folder belongs to whoever has renamed it last, which the
 * file system grants to one alone: two processes never write to one, and each goes on from what the other has left.
 */
import { mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import path from "node:path";
import { nanoid } from "nanoid";

export interface PartFolder {
  readonly path: string;
  /** Leaves it to the next attempt. */
  keep(): Promise<void>;
  remove(): Promise<void>;
}

/** A download that lives writes far more often, whatever its limits. */
const ABANDONED_MS = 10 * 60_000;

/**
 * @param key of what is downloaded: one state of one file.
 * @param isChecked whether what comes out is compared with a checksum. Only then is a part taken over that a process which
 * was killed has left: its last bytes may be missing.
 */
export async function openPartFolder(parent: string, key: string, isChecked: boolean): Promise<PartFolder> {
  const left = path.join(parent, key);
  const own = path.join(parent, `${key}.${nanoid()}`);
  await mkdir(parent, { recursive: true });
  if (!(await take(left, own))) {
    await mkdir(own);
    const orphan = isChecked ? await findOrphan(parent, key, own) : undefined;
    if (orphan !== undefined) {
      await rm(own, { recursive: true });
      if (!(await take(orphan, own))) await mkdir(own);
    }
  }
  return {
    path: own,
    keep: async () => {
      // where another one has left a part meanwhile, one is enough
      if (!(await take(own, left))) await rm(own, { recursive: true, force: true });
    },
    remove: () => rm(own, { recursive: true, force: true }),
  };
}

async function take(from: string, to: string): Promise<boolean> {
  try {
    await rename(from, to);
    return true;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : undefined;
    if (code === "ENOENT" || code === "ENOTEMPTY" || code === "EEXIST" || code === "EPERM") return false;
    throw error;
  }
}

async function findOrphan(parent: string, key: string, own: string): Promise<string | undefined> {
  // by the clock of the file system, which may be another machine's
  const now = (await stat(own)).mtimeMs;
  for (const name of await readdir(parent)) {
    const folder = path.join(parent, name);
    if (!name.startsWith(`${key}.`) || folder === own) continue;
    const files = await readdir(folder).catch(() => []);
    const times = await Promise.all([folder, ...files.map((file) => path.join(folder, file))].map(mtimeMs));
    if (Math.max(...times) < now - ABANDONED_MS) return folder;
  }
  return undefined;
}

/** What has gone meanwhile is in use. */
function mtimeMs(file: string): Promise<number> {
  return stat(file).then(
    (stats) => stats.mtimeMs,
    () => Infinity,
  );
}
