/** From what a caller calls a model to a file on this machine. */
import { createHash } from "node:crypto";
import { mkdir, rename, writeFile } from "node:fs/promises";
import path from "node:path";
import { nanoid } from "nanoid";
import { isModelSupervisorError } from "../../../errors.js";
import type { ModelSource } from "../../../model.js";
import { downloadAll, typedError, type Wanted } from "./download.js";
import { findFile, isComplete, repositoryFolder } from "./find.js";
import { fetchHeader } from "./remote-header.js";
import { fileOfQuant, hubFile, webFile } from "./remote-file.js";
import { StatusError, type Asked } from "./requests.js";
import type { SourceSettings } from "./settings.js";
import { isCommit, parseSource, type HubSource, type UrlSource } from "./source.js";
import { partsOf } from "./split-set.js";

export interface Wish {
  /** Makes a folder for files with nothing but the headers. Where it is given, nothing is downloaded whole. */
  readonly headersIn: (() => Promise<string>) | undefined;
  readonly signal: AbortSignal;
  /** Called with the share that is here, 0 to 1, while something is downloaded. */
  readonly onDownload?: ((fraction: number) => void) | undefined;
}

/**
 * The path of the model's file, of a set its first part. What is on this machine is used without a request, unless a branch
 * or tag was asked for, which may have moved.
 * @throws SourceUnavailableError, StorageFullError, InvalidOptionError, or the signal's reason, at once.
 */
export async function localFile(source: ModelSource, settings: SourceSettings, wish: Wish): Promise<string> {
  const parsed = parseSource(source, settings.endpoint);
  if (parsed.kind === "path") return path.resolve(source);
  wish.signal.throwIfAborted();
  const asked: Asked = { source, settings, signal: wish.signal };
  return parsed.kind === "hub" ? fromHub(parsed, asked, wish) : fromWeb(parsed, asked, wish);
}

async function fromHub(hub: HubSource, asked: Asked, wish: Wish): Promise<string> {
  const found = await findFile(hub, asked.settings);
  const isCertain = hub.revision === undefined || isCommit(hub.revision);
  if (found !== undefined && isCertain) return found;
  try {
    return await fetchFromHub(hub, asked, wish);
  } catch (error) {
    // without an answer the last known state of a branch is better than none
    const isOffline = isModelSupervisorError(error, "source_unavailable") && !(error instanceof StatusError);
    if (found !== undefined && isOffline) return found;
    throw error;
  }
}

async function fetchFromHub(hub: HubSource, asked: Asked, wish: Wish): Promise<string> {
  const file = hub.file ?? (await fileOfQuant(hub, asked));
  // its name may be one that could not be told from the quantization
  const known = hub.file === undefined ? await findFile({ ...hub, file }, asked.settings) : undefined;
  if (known !== undefined) return known;

  const revision = hub.revision ?? "main";
  const names = partsOf(file);
  const first = await hubFile(hub, names[0], revision, asked);
  const fetched = isCommit(revision)
    ? undefined
    : await findFile({ ...hub, file, revision: first.commit }, asked.settings);
  if (fetched !== undefined) return fetched;
  const repository = repositoryFolder(asked.settings.modelsDir, hub);
  const target = (name: string) => path.join(repository, "snapshots", first.commit, ...name.split("/"));
  const wanted: Wanted[] = [{ file: first.file, target: target(names[0]) }];
  for (const name of names.slice(1)) {
    const part = await hubFile(hub, name, first.commit, asked);
    wanted.push({ file: part.file, target: target(name) });
  }
  if (wish.headersIn !== undefined) return fetchHeaders(wanted, await wish.headersIn(), asked);
  await downloadAll(wanted, asked, wish.onDownload);
  // so that it is found without a request the next time
  if (!isCommit(revision)) await writeRef(path.join(repository, "refs", ...revision.split("/")), first.commit, asked);
  return target(names[0]);
}

async function fromWeb({ url }: UrlSource, asked: Asked, wish: Wish): Promise<string> {
  const parts = partsOf(url.pathname).map((pathname) => Object.assign(new URL(url), { pathname }));
  const first = parts[0] ?? url;
  // a folder for each set; the query counts: what it says may be the file, as well as a signature
  const place = createHash("sha256").update(first.href).digest("hex").slice(0, 32);
  const target = (part: URL) => path.join(asked.settings.modelsDir, "urls", place, fileName(part));
  if (await isComplete(target(first))) return target(first);
  const wanted: Wanted[] = [];
  for (const part of parts) wanted.push({ file: await webFile(part, asked), target: target(part) });
  if (wish.headersIn !== undefined) return fetchHeaders(wanted, await wish.headersIn(), asked);
  await downloadAll(wanted, asked, wish.onDownload);
  return target(first);
}

async function fetchHeaders(set: readonly Wanted[], folder: string, asked: Asked): Promise<string> {
  const files = set.map(({ target }) => path.join(folder, path.basename(target)));
  for (const [index, target] of files.entries()) {
    const file = set[index]?.file;
    if (file !== undefined) await fetchHeader(file, target, asked);
  }
  return files[0] ?? folder;
}

/** Of letters that no file system gives a meaning. */
function fileName({ pathname }: URL): string {
  const name = (pathname.split("/").at(-1) ?? "").replaceAll(/%[0-9a-f]{2}|[^A-Za-z0-9._-]/gi, "_").slice(-120);
  return /\.gguf$/i.test(name) ? name : `${name}.gguf`;
}

/** What the branch was when it was fetched, in the way that the hub's own tools note it. */
async function writeRef(ref: string, commit: string, asked: Asked): Promise<void> {
  const temporary = `${ref}.${nanoid()}`;
  try {
    await mkdir(path.dirname(ref), { recursive: true });
    await writeFile(temporary, commit);
    await rename(temporary, ref);
  } catch (error) {
    throw await typedError(error, ref, commit.length, asked);
  }
}
