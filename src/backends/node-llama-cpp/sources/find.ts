/** Looks for a file of the hub among what this machine has already. Reads only. */
import { readdir, readFile, stat } from "node:fs/promises";
import path from "node:path";
import type { SourceSettings } from "./settings.js";
import { isCommit, type HubSource } from "./source.js";
import { partsOf } from "./split-set.js";

/** The folder of a repository in the hub's own layout. */
export function repositoryFolder(cache: string, { user, repo }: HubSource): string {
  return path.join(cache, `models--${user}--${repo}`);
}

/**
 * The file (of a set the first part) of this source. Without a revision any that was fetched will do, the newest that `main`
 * was known as first; a branch or tag is what it was when it was last fetched.
 */
export async function findFile(hub: HubSource, settings: SourceSettings): Promise<string | undefined> {
  for (const cache of settings.hubCaches) {
    const found = await inHubCache(cache, hub);
    if (found !== undefined) return found;
  }
  for (const folder of settings.libraryDirs) {
    const found = await byLibraryName(folder, hub);
    if (found !== undefined) return found;
  }
  for (const cache of hub.revision === undefined ? settings.llamaCaches : []) {
    const found = await byLlamaName(cache, hub);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** True for a file that is there with all other parts of its set. */
export async function isComplete(file: string): Promise<boolean> {
  for (const part of partsOf(file)) {
    const isFile = await stat(part).then((stats) => stats.isFile(), absent);
    if (isFile !== true) return false;
  }
  return true;
}

async function inHubCache(cache: string, hub: HubSource): Promise<string | undefined> {
  const repository = repositoryFolder(cache, hub);
  const snapshots = path.join(repository, "snapshots");
  for (const commit of await commitsOf(repository, hub.revision)) {
    const folder = path.join(snapshots, commit);
    const file = hub.file ?? ofQuant(await filesBelow(folder), hub.quant);
    const found = file === undefined ? undefined : await firstPart(path.join(folder, ...file.split("/")));
    if (found !== undefined) return found;
  }
  return undefined;
}

async function firstPart(file: string): Promise<string | undefined> {
  return (await isComplete(file)) ? partsOf(file)[0] : undefined;
}

async function commitsOf(repository: string, revision: string | undefined): Promise<string[]> {
  if (revision !== undefined && isCommit(revision)) return [revision];
  const ref = path.join(repository, "refs", ...(revision ?? "main").split("/"));
  const known = (await readFile(ref, "utf8").catch(absent))?.trim();
  const first = known !== undefined && isCommit(known) ? [known] : [];
  if (revision !== undefined) return first;
  const snapshots = path.join(repository, "snapshots");
  const others = await Promise.all(
    (await names(snapshots)).filter(isCommit).map(async (commit) => {
      const stats = await stat(path.join(snapshots, commit)).catch(absent);
      return { commit, mtimeMs: stats?.mtimeMs ?? 0 };
    }),
  );
  const newestFirst = others.toSorted((a, b) => b.mtimeMs - a.mtimeMs).map(({ commit }) => commit);
  return [...new Set([...first, ...newestFirst])];
}

/** The library knows its own names; it looks and asks nobody. */
async function byLibraryName(directory: string, hub: HubSource): Promise<string | undefined> {
  if (hub.revision !== undefined && !isCommit(hub.revision)) return undefined;
  if ((await names(directory)).length === 0) return undefined;
  const { resolveModelFile } = await import("node-llama-cpp");
  const file = hub.file === undefined ? "" : `/${hub.file}`;
  const quant = hub.quant === undefined ? "" : `:${hub.quant}`;
  const revision = hub.revision === undefined ? "" : `#${hub.revision}`;
  const uri = `hf:${hub.user}/${hub.repo}${quant}${file}${revision}`;
  // it rejects when there is none
  const found = await resolveModelFile(uri, { directory, download: false, cli: false }).catch(absent);
  return found === undefined ? undefined : firstPart(found);
}

/** `user_repo_file.gguf`, slashes as underscores. */
async function byLlamaName(cache: string, hub: HubSource): Promise<string | undefined> {
  const prefix = `${hub.user}_${hub.repo}_`;
  const rest = (await names(cache)).filter((name) => name.startsWith(prefix)).map((name) => name.slice(prefix.length));
  const file = hub.file?.replaceAll("/", "_") ?? ofQuant(rest, hub.quant);
  return file !== undefined && rest.includes(file) ? firstPart(path.join(cache, prefix + file)) : undefined;
}

const BEST_QUANT = "Q4_K_M";

/** The one file whose name says this quantization; where several do, only the hub can tell. */
function ofQuant(files: readonly string[], quant: string | undefined): string | undefined {
  // a set counts as its first part, and a projector is no model of its own
  const models = files.filter((file) => partsOf(file)[0] === file && !/(^|\/)mmproj[^/]*$/i.test(file));
  const named = (name: string) => models.filter((file) => says(file, name));
  const fitting = quant === undefined ? named(BEST_QUANT) : named(quant);
  const candidates = quant === undefined && fitting.length === 0 ? models : fitting;
  return candidates.length === 1 ? candidates[0] : undefined;
}

function says(file: string, quant: string): boolean {
  const stem = file.replace(/(-\d{5}-of-\d{5})?\.gguf$/i, "").toLowerCase();
  const name = quant.toLowerCase();
  return stem === name || (stem.endsWith(name) && /[-._/]/.test(stem.at(-name.length - 1) ?? ""));
}

/** Paths of GGUF files below the folder, with slashes. */
async function filesBelow(folder: string): Promise<string[]> {
  const all = (await readdir(folder, { recursive: true }).catch(absent)) ?? [];
  return all.map((file) => file.replaceAll(path.sep, "/")).filter((file) => /\.gguf$/i.test(file));
}

async function names(folder: string): Promise<string[]> {
  return (await readdir(folder).catch(absent)) ?? [];
}

/** What cannot be read is as good as not there: a cache is a convenience. */
function absent(): undefined {
  return undefined;
}
