/**
 * From a path to a checked model: everything that is wrong with the file is said here, before native code sees it, for
 * there a bad file is a line in a log at best. A set of split files counts as one model, led by its first part.
 */
import { open, realpath, stat, type FileHandle } from "node:fs/promises";
import path from "node:path";
import type { GgufFileInfo } from "node-llama-cpp";
import { InvalidModelFileError, InvalidOptionError, SourceUnavailableError } from "../../errors.js";
import type { Capability, ModelSource } from "../../model.js";
import type { EngineOptions, ResolvedModel } from "../backend.js";
import { CheckedFiles, stampOf } from "./checked-files.js";
import { GgufFormatError, readGgufHeader, type GgufHeader } from "./gguf-header.js";
import { metadataProblem } from "./gguf-metadata.js";
import { factsOf } from "./model-facts.js";
import { partsOf } from "./sources/split-set.js";

/** A file as it was when it was checked. */
export interface CheckedFile {
  readonly path: string;
  readonly sizeBytes: number;
  readonly mtimeMs: number;
  /** Of the same content as long as it is the same: the real path, and what tells a file from one that took its place. */
  readonly identity: string;
}

/** A model whose files have been read and checked. */
export class GgufModel implements ResolvedModel {
  readonly source: ModelSource;
  readonly sizeBytes: number;
  readonly supports: readonly Capability[];
  readonly defaultCapabilities: readonly Capability[];
  readonly trainedContextSize: number;
  /** In order; the first one is what the engine is given. */
  readonly files: readonly [CheckedFile, ...CheckedFile[]];
  readonly info: GgufFileInfo;
  /** A text must be evaluated in one native call, else its vector is wrong (pooling over all tokens, no causal mask). */
  readonly embedsInOneBatch: boolean;
  /** Positions are rows of a table: one more than the table has aborts the process. */
  readonly positionsAreBounded: boolean;

  constructor(source: ModelSource, files: readonly [CheckedFile, ...CheckedFile[]], info: GgufFileInfo) {
    const facts = factsOf(info, files[0].path);
    this.source = source;
    this.files = files;
    this.info = info;
    this.sizeBytes = files.reduce((sum, file) => sum + file.sizeBytes, 0);
    this.supports = facts.supports;
    this.defaultCapabilities = facts.defaultCapabilities;
    this.trainedContextSize = facts.trainedContextSize;
    this.embedsInOneBatch = facts.embedsInOneBatch;
    this.positionsAreBounded = facts.positionsAreBounded;
  }
}

const checkedModels = new CheckedFiles<GgufModel>();

/**
 * Finds and checks the model at `source`. One that has been checked, and whose files have not changed since, is the same.
 * @param locate finds its file, of a set any part; a source that is a path needs no finding.
 * @throws SourceUnavailableError, StorageFullError, InvalidModelFileError, InvalidOptionError, or the signal's reason.
 */
export async function resolveGgufModel(
  source: ModelSource,
  options: EngineOptions,
  signal: AbortSignal,
  locate: () => Promise<string> = async () => path.resolve(source),
): Promise<GgufModel> {
  refuseUnsupportedOptions(options);
  const files: CheckedFile[] = [];
  const headers: GgufHeader[] = [];
  const parts = partsOf(await locate());
  const key = JSON.stringify([source, ...parts]);
  const stamp = await stampOf(parts);
  const known = stamp === undefined ? undefined : checkedModels.recall(key, stamp);
  if (known !== undefined) {
    signal.throwIfAborted();
    checkContextSize(known, options.contextSize);
    return known;
  }
  for (const part of parts) {
    signal.throwIfAborted();
    const { file, header } = await checkFile(source, part, parts.length, signal);
    files.push(file);
    headers.push(header);
  }
  const [first, ...rest] = files;
  if (first === undefined) throw new TypeError("A model has at least one file");
  checkSet(files, headers);

  const { readGgufFileInfo } = await import("node-llama-cpp");
  signal.throwIfAborted();
  const info = await readGgufFileInfo(first.path, {
    sourceType: "filesystem",
    logWarnings: false,
    signal,
    ignoreKeys: UNUSED_KEYS,
  }).catch((cause: unknown) => {
    signal.throwIfAborted();
    throw new InvalidModelFileError(first.path, `its header cannot be read (${messageOf(cause)})`, cause);
  });
  const model = new GgufModel(source, [first, ...rest], info);
  const problem = await metadataProblem(info, headers[0]?.arrayLengths ?? new Map());
  signal.throwIfAborted();
  if (problem !== undefined) throw new InvalidModelFileError(first.path, problem);
  if (stamp !== undefined) checkedModels.remember(key, stamp, model);
  checkContextSize(model, options.contextSize);
  return model;
}

/** Large tables of the tokenizer that nothing here reads; the engine reads its own. */
const UNUSED_KEYS = ["tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"];

/** @throws InvalidOptionError where the model cannot look that far back. */
export function checkContextSize(model: GgufModel, contextSize: number | undefined): void {
  if (!model.positionsAreBounded || contextSize === undefined || contextSize <= model.trainedContextSize) return;
  throw new InvalidOptionError(
    "contextSize",
    `at most ${model.trainedContextSize}, which is all that this model has positions for`,
    contextSize,
  );
}

/**
 * Looks once more right before native code maps the files: a file that was replaced or cut since it was checked would
 * take the process down.
 * @throws SourceUnavailableError, InvalidModelFileError
 */
export async function checkUnchanged(model: GgufModel): Promise<void> {
  for (const file of model.files) {
    const now = await stat(file.path).catch((cause: unknown) => {
      throw new SourceUnavailableError(model.source, `"${file.path}" ${reasonOf(cause)}`, cause);
    });
    if (now.size === file.sizeBytes && now.mtimeMs === file.mtimeMs) continue;
    throw new InvalidModelFileError(
      file.path,
      `it has changed since it was checked (${file.sizeBytes} bytes then, ${now.size} now); load it again`,
    );
  }
}

async function checkFile(
  source: ModelSource,
  file: string,
  partCount: number,
  signal: AbortSignal,
): Promise<{ file: CheckedFile; header: GgufHeader }> {
  const part = partCount > 1 ? `the part "${path.basename(file)}" of ${partCount}` : "the file";
  const unavailable = (cause: unknown) =>
    new SourceUnavailableError(source, `${part} ${reasonOf(cause)}${hint(source, file, cause)}`, cause);
  let handle: FileHandle;
  try {
    // Before it is opened: opening a pipe would wait for its other end.
    const kind = await stat(file);
    if (!kind.isFile())
      throw new SourceUnavailableError(
        source,
        `${part} is ${kind.isDirectory() ? "a directory, not a file" : "not a regular file"}`,
      );
    handle = await open(file, "r");
  } catch (cause) {
    throw cause instanceof SourceUnavailableError ? cause : unavailable(cause);
  }
  try {
    const { size, mtimeMs, dev, ino } = await handle.stat();
    const identity = [await realpath(file), dev, ino, size, mtimeMs].join(":");
    const header = await readGgufHeader(handle, size, signal);
    return { file: { path: file, sizeBytes: size, mtimeMs, identity }, header };
  } catch (cause) {
    if (cause instanceof GgufFormatError) throw new InvalidModelFileError(file, cause.message, cause);
    throw signal.aborted ? cause : unavailable(cause);
  } finally {
    await handle.close();
  }
}

/** That the parts belong together, and that one which stands alone is not a piece of a set. */
function checkSet(files: readonly CheckedFile[], headers: readonly GgufHeader[]): void {
  for (const [index, header] of headers.entries()) {
    const file = files[index]?.path ?? "";
    if (Math.max(1, header.splitCount) === files.length) continue;
    throw new InvalidModelFileError(
      file,
      header.splitCount > 1
        ? `it is one of ${header.splitCount} parts, and must be named like "name-00001-of-${String(header.splitCount).padStart(5, "0")}.gguf" beside the others`
        : `by its name it is one of ${files.length} parts, but its header says that it stands alone`,
    );
  }
  const first = files[0]?.path ?? "";
  if (headers[0]?.architecture === undefined)
    throw new InvalidModelFileError(first, 'its header has no "general.architecture"');
  if (headers.every(({ tensorCount }) => tensorCount === 0))
    throw new InvalidModelFileError(first, "it has no tensors");
}

/** What only a process of its own, pinned to a GPU, could give; this engine spreads layers over all GPUs it sees. */
function refuseUnsupportedOptions(options: EngineOptions): void {
  for (const option of ["splitMode", "tensorSplit", "mainGpu"] as const) {
    if (options[option] === undefined) continue;
    throw new InvalidOptionError(
      option,
      "no value: node-llama-cpp cannot choose among the GPUs of a process, only a child process pinned to a GPU could",
      options[option],
    );
  }
}

const REASONS = new Map([
  ["ENOENT", "does not exist"],
  ["ENOTDIR", "does not exist"],
  ["EACCES", "may not be read"],
  ["EPERM", "may not be read"],
]);

function reasonOf(cause: unknown): string {
  return REASONS.get(codeOf(cause)) ?? `cannot be read (${messageOf(cause)})`;
}

function codeOf(cause: unknown): string {
  return cause instanceof Error && "code" in cause ? String(cause.code) : "";
}

/** Where a relative path leads, and how the hub is meant: `user/repo` and `model:tag` are paths, too. */
function hint(source: ModelSource, file: string, cause: unknown): string {
  const isMissing = ["ENOENT", "ENOTDIR"].includes(codeOf(cause));
  if (!isMissing || path.isAbsolute(source) || file !== path.resolve(source)) return "";
  const sought = `; it was looked for at "${file}"`;
  return /\.gguf$/i.test(source) ? sought : `${sought}, and a model of the hub is written hf:user/repo:quant`;
}

function messageOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
