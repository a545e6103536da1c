/**
 * The error family. Every failure that a caller can meet has a stable `code`: match on that (or use
 * {@link isModelSupervisorError}), not on the message and not on `instanceof`, which fails across two installed copies.
 */
import { shownSource } from "./model.js";
import type { Capability, Device, ErrorInfo, Mode, ModelId, ModelSource, Status } from "./model.js";
import type { RequestPhase } from "./inference.js";

const MARKER = Symbol.for("model-supervisor.error");

/** Base of all typed errors. Fields beyond `code` and `retryable` are those of the subclass and part of the contract. */
export abstract class ModelSupervisorError extends Error {
  abstract readonly code: string;
  /** True if the same call may succeed later without the caller changing anything. */
  abstract readonly retryable: boolean;
  /** @internal */
  get [MARKER](): true {
    return true;
  }

  /** `NotLoadedError` for `not_loaded`: made from the code, since minifiers change the names of classes. */
  override get name(): string {
    return `${this.code.replace(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase())}Error`;
  }

  /** Name, message, code, `retryable` and the fields; plain JSON, without stack and cause. */
  toJSON(): Record<string, unknown> & ErrorInfo {
    return {
      ...Object.fromEntries(Object.entries(this)),
      name: this.name,
      message: this.message,
      code: this.code,
      retryable: this.retryable,
    };
  }
}

/** No model of this id is declared or resident. */
export class NotLoadedError extends ModelSupervisorError {
  readonly code = "not_loaded";
  readonly retryable = false;
  readonly modelId: ModelId;
  constructor(modelId: ModelId) {
    super(`Model "${modelId}" is not loaded. Load it with load("${modelId}", source), or declare it at start.`);
    this.modelId = modelId;
  }
}

/** `@default` was asked for and no default model is set. */
export class NoDefaultModelError extends ModelSupervisorError {
  readonly code = "no_default_model";
  readonly retryable = false;
  constructor() {
    super("No default model is set. Load a model with { default: true }, call setDefault(id), or name a model.");
  }
}

/** The model is known, but cannot answer now. */
export class NotReadyError extends ModelSupervisorError {
  readonly code = "not_ready";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly status: Status;
  constructor(modelId: ModelId, status: Status, cause?: unknown) {
    super(`Model "${modelId}" is not ready: its status is "${status}"${firstSentence(cause)}. ${ADVICE[status]}`, {
      cause,
    });
    this.modelId = modelId;
    this.status = status;
  }
}

const ADVICE: Record<Status, string> = {
  registered: "Load it with load(id); a lazy one is also loaded by any request that waits for it.",
  loading: "Wait for its load() or for ready().",
  ready: "Try again.",
  unloading: "It is being unloaded; load it again afterwards.",
  error: "load(id) tries again.",
};

/** The id is taken. */
export class AlreadyLoadedError extends ModelSupervisorError {
  readonly code = "already_loaded";
  readonly retryable = false;
  readonly modelId: ModelId;
  readonly status: Status;
  constructor(modelId: ModelId, status: Status) {
    super(
      `Model id "${modelId}" is taken: its status is "${status}". ` +
        (status === "registered"
          ? `It is declared with a source of its own: call load("${modelId}") without one.`
          : status === "loading" || status === "ready"
            ? "Requests and acquire() wait for it or use it; to load something else, unload it first or choose another id."
            : "Unload it first, or choose another id."),
    );
    this.modelId = modelId;
    this.status = status;
  }
}

/** The load would not fit into the memory budget, or not into what is really free. Nothing was loaded. */
export class InsufficientMemoryError extends ModelSupervisorError {
  readonly code = "insufficient_memory";
  /** True where it would fit if models that may be evicted had gone. */
  readonly retryable: boolean;
  readonly modelId: ModelId;
  /** The first device that does not fit. */
  readonly device: Device;
  readonly requiredBytes: number;
  readonly availableBytes: number;
  /** What models hold there that may be evicted, now or when they fall idle, or that are being unloaded. */
  readonly evictableBytes: number;
  /** `cause`: the engine's own error, where it ran out of memory although the load should have fitted. */
  constructor(
    fields: {
      modelId: ModelId;
      device: Device;
      requiredBytes: number;
      availableBytes: number;
      evictableBytes: number;
    },
    cause?: unknown,
  ) {
    const { modelId, device, requiredBytes, availableBytes, evictableBytes } = fields;
    const others =
      evictableBytes > 0
        ? `; models that may be evicted when they are idle hold ${formatBytes(evictableBytes)} (overBudget: "evict-idle")`
        : "";
    const figures = `(${requiredBytes} against ${availableBytes} bytes)`;
    super(
      (cause === undefined
        ? `Model "${modelId}" needs ${formatBytes(requiredBytes)} on device "${device}", but only ` +
          `${formatBytes(availableBytes)} are available ${figures}${others}. `
        : `The engine could not allocate the ${formatBytes(requiredBytes)} that model "${modelId}" needs on device ` +
          `"${device}", where ${formatBytes(availableBytes)} seemed free ${figures}${because(cause)}. `) +
        "Unload a model, raise memoryBudget, or load with a smaller contextSize or parallel.",
      { cause },
    );
    this.modelId = modelId;
    this.device = device;
    this.requiredBytes = requiredBytes;
    this.availableBytes = availableBytes;
    this.evictableBytes = evictableBytes;
    this.retryable = evictableBytes > 0 && requiredBytes <= availableBytes + evictableBytes;
  }
}

/** The model cannot do this, or was not loaded for it. */
export class UnsupportedCapabilityError extends ModelSupervisorError {
  readonly code = "unsupported_capability";
  readonly retryable = false;
  readonly modelId: ModelId;
  readonly capability: Capability;
  readonly mode: Mode;
  /** `has`: what the loaded model (or, where a load is refused, its file) can do instead. */
  constructor(modelId: ModelId, capability: Capability, mode: Mode, has: readonly Capability[], of: "model" | "file") {
    super(
      of === "file"
        ? `The file of model "${modelId}" cannot ${capability}; it can ${has.join(", ")}.`
        : `Model "${modelId}" (mode "${mode}") does not ${capability}: it was loaded to ${has.join(", ")}.`,
    );
    this.modelId = modelId;
    this.capability = capability;
    this.mode = mode;
  }
}

/** The step of a load that failed. */
export type LoadPhase = "resolve" | "estimate" | "start" | "warm-up";

/** The engine could not load the model; `cause` is the engine's own error. */
export class LoadFailedError extends ModelSupervisorError {
  readonly code = "load_failed";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly phase: LoadPhase;
  /** Set where this is an earlier failure: until then it is not tried again, unless by `load(id)`. */
  readonly retryAfterMs: number | undefined;
  constructor(modelId: ModelId, phase: LoadPhase, cause: unknown, retryAfterMs?: number) {
    super(
      retryAfterMs === undefined
        ? `Loading model "${modelId}" failed in phase "${phase}"${because(cause)}.`
        : `Model "${modelId}" failed before${firstSentence(cause)}. A request loads it again after ` +
            `${Math.ceil(retryAfterMs)} ms, load("${modelId}") at once.`,
      { cause },
    );
    this.modelId = modelId;
    this.phase = phase;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The source cannot be read, or not be downloaded. */
export class SourceUnavailableError extends ModelSupervisorError {
  readonly code = "source_unavailable";
  readonly retryable = true;
  /** A URL is shown without its query. */
  readonly source: ModelSource;
  readonly detail: string;
  constructor(source: ModelSource, detail: string, cause?: unknown) {
    super(`Source "${shownSource(source)}" is not available: ${detail}.`, { cause });
    this.source = shownSource(source);
    this.detail = detail;
  }
}

/** A download does not fit on the disk. What has been downloaded so far is kept. */
export class StorageFullError extends ModelSupervisorError {
  readonly code = "storage_full";
  readonly retryable = true;
  /** What was to be written where: `models` is the folder of downloads. */
  readonly pathKind: "models";
  /** Still to be written. */
  readonly requiredBytes: number;
  readonly availableBytes: number;
  constructor(fields: { pathKind: "models"; requiredBytes: number; availableBytes: number }) {
    super(
      `The disk of the folder for ${fields.pathKind} is full: ${formatBytes(fields.requiredBytes)} are still to be written, ` +
        `${formatBytes(fields.availableBytes)} are free (${fields.requiredBytes} against ${fields.availableBytes} bytes). ` +
        "Make room, or choose another modelsDir.",
    );
    this.pathKind = fields.pathKind;
    this.requiredBytes = fields.requiredBytes;
    this.availableBytes = fields.availableBytes;
  }
}

/** The file is there, but is not a complete, valid GGUF file. */
export class InvalidModelFileError extends ModelSupervisorError {
  readonly code = "invalid_model_file";
  readonly retryable = false;
  readonly file: string;
  readonly detail: string;
  constructor(file: string, detail: string, cause?: unknown) {
    super(`"${file}" is not a valid model file: ${detail}.`, { cause });
    this.file = file;
    this.detail = detail;
  }
}

/** The memory that a load needs could not be told, or the figure made no sense. */
export class EstimateFailedError extends ModelSupervisorError {
  readonly code = "estimate_failed";
  readonly retryable = false;
  readonly source: ModelSource;
  readonly detail: string;
  constructor(source: ModelSource, detail: string, cause?: unknown) {
    super(`The memory that "${shownSource(source)}" needs cannot be estimated: ${detail}.`, { cause });
    this.source = shownSource(source);
    this.detail = detail;
  }
}

/** The model was unloaded (or the supervisor closed) while this load was under way. */
export class LoadCancelledError extends ModelSupervisorError {
  readonly code = "load_cancelled";
  readonly retryable = true;
  readonly modelId: ModelId;
  constructor(modelId: ModelId) {
    super(`The load of model "${modelId}" was cancelled by an unload or close.`);
    this.modelId = modelId;
  }
}

/** Requests were still in flight when the unload's time was up; the model is ready again. */
export class UnloadTimeoutError extends ModelSupervisorError {
  readonly code = "unload_timeout";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly leases: number;
  constructor(modelId: ModelId, leases: number, timeoutMs: number) {
    super(
      `Model "${modelId}" was still in use after ${timeoutMs} ms (requests and leases: ${leases}), so it stays loaded. ` +
        "Raise timeoutMs, release the leases, or unload with { force: true } to abort them.",
    );
    this.modelId = modelId;
    this.leases = leases;
  }
}

/** The model could not be given back: its disposal failed or hung. Its bytes stay reserved until it ends. */
export class DisposeFailedError extends ModelSupervisorError {
  readonly code = "dispose_failed";
  readonly retryable = false;
  readonly modelId: ModelId;
  readonly detail: string;
  constructor(modelId: ModelId, detail: string, cause?: unknown) {
    super(
      `Model "${modelId}" could not be disposed: ${detail}. Its memory stays reserved (see memory().unreleased); ` +
        "restart the process if it does not come back.",
      { cause },
    );
    this.modelId = modelId;
    this.detail = detail;
  }
}

/** The backing died while this request ran. */
export class BackingCrashedError extends ModelSupervisorError {
  readonly code = "backing_crashed";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly incarnation: number;
  readonly exitCode: number | undefined;
  readonly signal: string | undefined;
  constructor(fields: {
    modelId: ModelId;
    incarnation: number;
    exitCode?: number | undefined;
    signal?: string | undefined;
    cause?: unknown;
  }) {
    super(
      `The backing of model "${fields.modelId}" (incarnation ${fields.incarnation}) went down${because(fields.cause)}. ` +
        "load(id) starts a new one.",
      { cause: fields.cause },
    );
    this.modelId = fields.modelId;
    this.incarnation = fields.incarnation;
    this.exitCode = fields.exitCode;
    this.signal = fields.signal;
  }
}

/** A forced unload, a close or a restart of the manager cut the call off. */
export class RequestAbortedError extends ModelSupervisorError {
  readonly code = "request_aborted";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly reason: string;
  constructor(modelId: ModelId, reason: string) {
    super(`The call on model "${modelId}" was aborted: ${reason}.`);
    this.modelId = modelId;
    this.reason = reason;
  }
}

/** The engine failed on this one request; the model goes on. */
export class RequestFailedError extends ModelSupervisorError {
  readonly code = "request_failed";
  readonly retryable = false;
  readonly modelId: ModelId;
  constructor(modelId: ModelId, cause: unknown) {
    super(`The engine failed on this request to model "${modelId}"${because(cause)}. The model is still there.`, {
      cause,
    });
    this.modelId = modelId;
  }
}

/** What {@link QueueFullError} is made from. */
export interface QueueFullDetails {
  readonly modelId: ModelId;
  /** Which limit is reached: `maxQueue` of this model, or `maxQueueTotal` of all. */
  readonly of: "model" | "all";
  readonly limit: number;
  readonly queued: number;
  readonly retryAfterMs: number;
}

/** Too many requests wait for a slot, of this model or of all. */
export class QueueFullError extends ModelSupervisorError {
  readonly code = "queue_full";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly limit: number;
  readonly queued: number;
  /** How long one more request would wait for a slot of this model, by how long the last ones took. */
  readonly retryAfterMs: number;
  constructor({ modelId, of, limit, queued, retryAfterMs }: QueueFullDetails) {
    super(
      of === "model"
        ? `Model "${modelId}" has ${queued} request(s) waiting, its limit is ${limit}. ` +
            `Try again in ${retryAfterMs} ms, or load it with a larger maxQueue or parallel.`
        : `The models together have ${queued} request(s) waiting, their limit is ${limit}; this one was for "${modelId}". ` +
            `Try again in ${retryAfterMs} ms, or start the supervisor with a larger maxQueueTotal.`,
    );
    this.modelId = modelId;
    this.limit = limit;
    this.queued = queued;
    this.retryAfterMs = retryAfterMs;
  }
}

/** `timeoutMs` passed. */
export class RequestTimeoutError extends ModelSupervisorError {
  readonly code = "request_timeout";
  readonly retryable = true;
  readonly modelId: ModelId;
  readonly phase: RequestPhase;
  constructor(modelId: ModelId, phase: RequestPhase, timeoutMs: number) {
    super(`The request to model "${modelId}" was not done after ${timeoutMs} ms; it was in phase "${phase}".`);
    this.modelId = modelId;
    this.phase = phase;
  }
}

/** The prompt (with the tokens asked for) does not fit into a slot. */
export class ContextLengthExceededError extends ModelSupervisorError {
  readonly code = "context_length_exceeded";
  readonly retryable = false;
  readonly modelId: ModelId;
  readonly contextSize: number;
  readonly promptTokens: number;
  constructor(modelId: ModelId, contextSize: number, promptTokens: number, maxTokens?: number) {
    super(
      `The prompt has ${promptTokens} tokens${maxTokens === undefined ? "" : ` and maxTokens is ${maxTokens}`}; ` +
        `model "${modelId}" holds ${contextSize} tokens per slot. ` +
        `Shorten the prompt${maxTokens === undefined ? "" : ", lower maxTokens"}, or load the model with a larger contextSize; ` +
        "onOverflow (of embeddings and rankings: truncate) cuts what does not fit.",
    );
    this.modelId = modelId;
    this.contextSize = contextSize;
    this.promptTokens = promptTokens;
  }
}

/** The lease was used after its release. */
export class LeaseReleasedError extends ModelSupervisorError {
  readonly code = "lease_released";
  readonly retryable = false;
  readonly modelId: ModelId;
  constructor(modelId: ModelId) {
    super(`This lease on model "${modelId}" was released. Acquire a new one.`);
    this.modelId = modelId;
  }
}

/** An option or argument is not of the form it must have. Nothing was done. */
export class InvalidOptionError extends ModelSupervisorError {
  readonly code = "invalid_option";
  readonly retryable = false;
  readonly option: string;
  readonly expected: string;
  readonly received: string;
  constructor(option: string, expected: string, received: unknown) {
    super(`Option "${option}": expected ${expected}, received ${describeValue(received)}.`);
    this.option = option;
    this.expected = expected;
    this.received = describeValue(received);
  }
}

/** A supervisor of this name runs already in this process. */
export class AlreadyStartedError extends ModelSupervisorError {
  readonly code = "already_started";
  readonly retryable = false;
  readonly supervisor: string;
  constructor(name: string) {
    super(`A supervisor named "${name}" runs already. Use ModelSupervisor.get("${name}"), or start with another name.`);
    this.supervisor = name;
  }
}

/** No supervisor of this name runs in this process. */
export class NotStartedError extends ModelSupervisorError {
  readonly code = "not_started";
  readonly retryable = false;
  readonly supervisor: string;
  constructor(name: string) {
    super(`No supervisor named "${name}" runs. Start one with ModelSupervisor.start({ name: "${name}" }).`);
    this.supervisor = name;
  }
}

/** The supervisor is closing or closed. */
export class ClosedError extends ModelSupervisorError {
  readonly code = "closed";
  readonly retryable = false;
  readonly supervisor: string;
  constructor(name: string) {
    super(`The supervisor "${name}" is closed. Start a new one with ModelSupervisor.start().`);
    this.supervisor = name;
  }
}

/** A part of the supervision tree failed more often than is allowed; the tree has ended. */
export class SupervisorExhaustedError extends ModelSupervisorError {
  readonly code = "supervisor_exhausted";
  readonly retryable = false;
  readonly child: string;
  constructor(name: string, child: string, cause?: unknown) {
    super(`The supervisor "${name}" has ended: "${child}" failed too often${because(cause)}.`, { cause });
    this.child = child;
  }
}

type AnyModelSupervisorError =
  | NotLoadedError
  | NoDefaultModelError
  | NotReadyError
  | AlreadyLoadedError
  | InsufficientMemoryError
  | UnsupportedCapabilityError
  | LoadFailedError
  | SourceUnavailableError
  | StorageFullError
  | InvalidModelFileError
  | EstimateFailedError
  | LoadCancelledError
  | UnloadTimeoutError
  | DisposeFailedError
  | BackingCrashedError
  | RequestAbortedError
  | RequestFailedError
  | QueueFullError
  | RequestTimeoutError
  | ContextLengthExceededError
  | LeaseReleasedError
  | InvalidOptionError
  | AlreadyStartedError
  | NotStartedError
  | ClosedError
  | SupervisorExhaustedError;

/** All codes; the README's table lists them with their meaning. */
export type ErrorCode = AnyModelSupervisorError["code"];

/** Tells a typed error of this library (of any installed copy) from others, and narrows it to `code` if one is given. */
export function isModelSupervisorError<Code extends ErrorCode = ErrorCode>(
  error: unknown,
  code?: Code,
): error is Extract<AnyModelSupervisorError, { code: Code }> {
  return error instanceof Error && MARKER in error && (code === undefined || ("code" in error && error.code === code));
}

/** `1.5 GiB`, for messages. */
function formatBytes(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** power;
  return `${power === 0 || Number.isInteger(value) ? value : value.toFixed(1)} ${units[power]}`;
}

/** What went wrong, without the advice that the cause gives for its own situation. */
function firstSentence(cause: unknown): string {
  return because(cause).replace(/\. [A-Z(].*$/s, "");
}

function because(cause: unknown): string {
  if (cause === undefined) return "";
  // causes come from foreign code, where a message may be anything
  const message: unknown = cause instanceof Error ? cause.message : cause;
  return `: ${(typeof message === "string" ? message : describeValue(message)).replace(/\.+$/, "")}`;
}

function describeValue(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}…` : value);
  if (typeof value === "object" && value !== null) return Array.isArray(value) ? "an array" : "an object";
  return typeof value === "function" ? "a function" : String(value);
}
