/** The public interfaces: how to start a supervisor and what its manager does. */
import type { Backend, EngineOptions } from "./backends/backend.js";
import type { ModelSupervisorError } from "./errors.js";
import type {
  ChatMessage,
  ChatOptions,
  ChatResult,
  EmbedManyResult,
  EmbedOptions,
  EmbedResult,
  FinishReason,
  GenerateOptions,
  GenerateResult,
  GenerationPart,
  RankOptions,
  RankResult,
  RequestOptions,
  RequestPhase,
  StepReport,
  Timings,
  Usage,
  WaitOptions,
} from "./inference.js";
import type { MetricsSnapshot } from "./metrics/snapshot.js";
import type {
  Capability,
  Device,
  DeviceInfo,
  LoadPlan,
  LoadPolicy,
  LoadTrigger,
  MemoryBudget,
  MemoryReport,
  Mode,
  ModelId,
  ModelInfo,
  ModelSource,
  UnloadReason,
  UnreleasedMemory,
} from "./model.js";

/** The id that stands for the default model in every inference call. */
export const DEFAULT_MODEL = "@default";

/** Where the supervisor gets its time from. xstate's `SimulatedClock` fits, for tests. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

/** Told what no caller can be told: a listener that threw, a part of the tree that was restarted. */
export interface Logger {
  warn(message: string, error?: unknown): void;
}

/** Options of `ModelSupervisor.start`. */
export interface ModelSupervisorOptions {
  /** One manager per name in a process. Default `"default"`. */
  readonly name?: string | undefined;
  /** The engine. Default `nodeLlamaCpp()`. */
  readonly backend?: Backend | undefined;
  /** Default `"auto"`. */
  readonly memoryBudget?: MemoryBudget | undefined;
  /** The eager ones are loaded from the start, side by side, and visible as `loading` when `start` resolves. */
  readonly models?: readonly ModelDeclaration[] | undefined;
  /**
   * CPU threads that all models together may use. Default `"auto"`: the CPUs that this process may really use
   * (container quotas count) but one, at least 1.
   */
  readonly maxThreads?: number | "auto" | undefined;
  /** Requests that may wait for a slot, over all models; more are refused with `queue_full`. Default 1,024. */
  readonly maxQueueTotal?: number | undefined;
  /**
   * What becomes of a load that does not fit. `"refuse"` (default): `insufficient_memory`; nothing is ever evicted.
   * `"evict-idle"`: idle models that are `evictable` are unloaded for it, as few as will do; a load that a request needs
   * also waits for models in use to fall idle.
   */
  readonly overBudget?: "refuse" | "evict-idle" | undefined;
  /**
   * With `"evict-idle"`: how long a load that a request needs waits for models in use to fall idle by themselves, and how
   * long one that was just loaded is kept for its first request. Then models in use take no more requests until it is loaded;
   * after the same time once more the load is refused. With either choice it is refused then too where it waits for a model
   * that is being unloaded and still in use. Milliseconds, default 30,000.
   */
  readonly maxWaitMs?: number | undefined;
  /** The `ttlMs` of models that have none of their own. Default `Infinity`. */
  readonly defaultTtlMs?: number | undefined;
  /** How often models are looked at whose TTL may have passed. Milliseconds, default 1,000. */
  readonly sweepIntervalMs?: number | undefined;
  /**
   * Folder of downloaded models, for the default engine; one that is passed as `backend` has its own option. Default:
   * node-llama-cpp's, `~/.node-llama-cpp/models`.
   */
  readonly modelsDir?: string | undefined;
  /** Default: the system's time. */
  readonly clock?: Clock | undefined;
  /** Default: `process.emitWarning`. */
  readonly logger?: Logger | undefined;
}

/** What a model is loaded for and how it is run. */
export interface ModelOptions extends EngineOptions {
  /**
   * Default from the file: an encoder embeds (ranks if it is a reranker), anything else generates and chats. A model
   * that cannot do what is asked here is refused with `unsupported_capability`.
   */
  readonly capabilities?: readonly Capability[] | undefined;
  /**
   * Default `"direct"` if the capabilities contain `embed` or `rank`, else `"server"`. `"server"` with `embed` or `rank`
   * keeps a context for it beside the slots, on the same weights.
   */
  readonly mode?: Mode | undefined;
  /** Makes this the default model: a declared one from the start, any other when it is ready. */
  readonly default?: boolean | undefined;
  /**
   * Unload it when nobody has used it for so long, counted from the end of the last use: milliseconds, default
   * `defaultTtlMs`. Looked at every `sweepIntervalMs`. The next request loads a declared model again.
   */
  readonly ttlMs?: number | undefined;
  /** False: never unloaded to make room. Default true. */
  readonly evictable?: boolean | undefined;
  /** Models with a higher one go first. Default 0. */
  readonly evictionPriority?: number | undefined;
  /** Run each of its capabilities once before it is `ready`, so that the first request finds everything warm. Default false. */
  readonly warmUp?: boolean | undefined;
}

/** A model that the supervisor knows from its start, loaded or not. */
export interface ModelDeclaration extends ModelOptions {
  readonly id: ModelId;
  readonly source: ModelSource;
  /** `"eager"` (default): loaded from the start. `"lazy"`: checked at the start, loaded by the first request. */
  readonly loadPolicy?: LoadPolicy | undefined;
}

/** Options of `register`. */
export interface RegisterOptions extends ModelOptions {
  /** What is registered is lazy. */
  readonly loadPolicy?: "lazy" | undefined;
  /** Ends the wait for the check: the call rejects with `signal.reason`, the model stays registered. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of one load. */
export interface LoadOptions extends ModelOptions {
  /** Cancels the load: it rejects with `signal.reason` at once, and what it took is given back as soon as the engine lets go. */
  readonly signal?: AbortSignal | undefined;
  /** Called as the load moves on. What it throws is reported to the logger. */
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/** How far a load is. */
export interface LoadProgress {
  readonly modelId: ModelId;
  /** `download` comes after `resolve`, and only where something has to be downloaded. */
  readonly phase: "resolve" | "download" | "estimate" | "start" | "warm-up";
  /** Share of the phase that is done, 0 to 1: of the bytes in `download`, of the weights in `start`. */
  readonly fraction: number;
}

/** Options of `unload` and `remove`. */
export interface UnloadOptions {
  /**
   * Milliseconds that requests in flight and leases may take to finish. Default 30,000; 0 with `force`; `Infinity` waits
   * for them. Then, without `force`, the model stays loaded and the call rejects with `unload_timeout`. A call that joins
   * an unload under way ends with that one; with `force` it hastens it.
   */
  readonly timeoutMs?: number | undefined;
  /**
   * Abort what is still in flight after `timeoutMs`, then unload: requests and leases are told `request_aborted`. An engine
   * that does not fall quiet within 30 s, or a lease whose `native` was taken and is not released, makes the model stuck:
   * `dispose_failed`, and its memory stays reserved.
   */
  readonly force?: boolean | undefined;
}

/** Why the tree has ended. */
export type CloseReason =
  | { readonly reason: "closed"; readonly unreleased: readonly UnreleasedMemory[] }
  | {
      readonly reason: "exhausted";
      readonly error: ModelSupervisorError;
      readonly unreleased: readonly UnreleasedMemory[];
    };

/** One actor of the supervision tree. Plain JSON. */
export interface SupervisionNode {
  readonly id: string;
  readonly kind: "supervisor" | "worker";
  /** Only on supervisors. */
  readonly strategy?: "rest_for_one" | "one_for_one";
  /** Restarts within the period that counts; only on the root. */
  readonly restarts?: number;
  /**
   * For a load balancer: whether all eager models have been loaded and none is in `error`. True also when one has gone by its
   * TTL or to make room (the next request brings it back) or was unloaded by hand; false once the supervisor is closing.
   * Only on the root.
   */
  readonly ready?: boolean;
  readonly children: readonly SupervisionNode[];
}

/**
 * Facts about models and requests, never payload text. Listeners of `model:` and `budget:` events run inside the manager's
 * mailbox: a slow one holds up lifecycle calls (never requests); those of `request:` and `engine:` events run between two
 * steps of the model. Every event is also published, with the supervisor's name as `supervisor`, on the channel
 * `model-supervisor:<event>` of `node:diagnostics_channel`. Nothing is made for events that nobody listens to. What a
 * listener throws, or rejects with, goes to the logger; what a subscriber of a channel throws, Node takes for an uncaught
 * exception. `model:loading` of models declared at the start comes before `start` resolves. A model that could not be
 * unloaded in time is `model:ready` again.
 */
export interface ModelManagerEvents {
  /** Declared at the start or by `register`, not loaded yet. */
  "model:registered": (event: { modelId: ModelId }) => void;
  "model:loading": (event: { modelId: ModelId; incarnation: number; trigger: LoadTrigger }) => void;
  /** `loadMs` from the order to load on, waits for room included; absent when an unload did not come to its end. */
  "model:ready": (event: { modelId: ModelId; incarnation: number; loadMs?: number }) => void;
  /** `idleMs` since the last use, or since the load where there was none. */
  "model:unloading": (event: { modelId: ModelId; incarnation: number; reason: UnloadReason; idleMs: number }) => void;
  /** Its memory is free; or its load was cancelled, and what that took is still being given back. */
  "model:unloaded": (event: { modelId: ModelId; incarnation: number; reason: UnloadReason }) => void;
  "model:error": (event: { modelId: ModelId; incarnation: number; error: ModelSupervisorError }) => void;
  /** A restarted manager has forgotten a model that was not declared; it is unloaded. */
  "model:lost": (event: { modelId: ModelId; incarnation: number }) => void;
  "budget:refused": (event: {
    modelId: ModelId;
    device: Device;
    requiredBytes: number;
    availableBytes: number;
    evictableBytes: number;
  }) => void;
  /** A request has its lease and goes to the engine. */
  "request:start": (event: RequestEvent) => void;
  /** A request has to wait for a slot. `position`: its place in the queue, from 1, if no more urgent one comes. */
  "request:queued": (event: RequestEvent & { position: number }) => void;
  /** A request is over and the engine quiet for it. */
  "request:end": (event: RequestEvent & RequestOutcome) => void;
  /** A step of a model's slots. */
  "engine:step": (event: StepReport) => void;
}

/** Which request an event is about. */
export interface RequestEvent {
  readonly modelId: ModelId;
  readonly incarnation: number;
  readonly requestId: string;
  readonly call: "generate" | "chat" | "embed" | "rank" | "tokenize" | "detokenize";
}

/** How a request ended. */
export interface RequestOutcome {
  /** `aborted`: by its caller, its consumer, a time limit or an unload. */
  readonly outcome: "done" | "aborted" | "failed";
  /** From the start to the end, milliseconds. */
  readonly durationMs: number;
  /** Where it was when it ended without success. */
  readonly phase?: RequestPhase;
  /** The error's code; absent for what the caller aborted with. */
  readonly code?: string;
  readonly finishReason?: FinishReason;
  readonly usage?: { readonly promptTokens: number } & Partial<Usage>;
  readonly timings?: Timings;
}

/**
 * A running generation: iterate it for text, or `parts` for typed pieces, or await `result`.
 * It starts at the first pull or when `result` is read. One consumer; leaving the loop aborts the request.
 */
export interface GenerationStream<Result extends GenerateResult = GenerateResult> extends AsyncIterable<string> {
  /** The same generation as typed pieces (text, and of a chat reasoning and tool calls), ending with a `finish` part. */
  readonly parts: AsyncIterable<GenerationPart>;
  /**
   * The whole result. If nobody looks at it, its rejection is not reported as unhandled. After the consumer has left the
   * loop it rejects with an `AbortError`.
   */
  readonly result: Promise<Result>;
}

/**
 * The inference calls on one model that is held until the lease is released.
 * Calls after the release are refused with `lease_released`; calls that run then finish undisturbed. A forced unload, a
 * close or a crash ends the lease: calls are then refused with that reason. One whose {@link Lease.native} was taken keeps
 * the model in memory all the same until it is released, since nobody can know what is done with the object.
 */
export interface Lease extends Disposable {
  readonly modelId: ModelId;
  readonly incarnation: number;
  /**
   * The engine's own model object (for node-llama-cpp its `LlamaModel`), where it lives in this process. Models that share
   * their weights have the same one: whoever disposes it takes all of them down.
   */
  readonly native: unknown;
  /** Like {@link ModelManager.generate}. */
  generate(prompt: string, options?: GenerateOptions): Promise<GenerateResult>;
  /** Like {@link ModelManager.stream}. */
  stream(prompt: string, options?: GenerateOptions): GenerationStream;
  /** Like {@link ModelManager.chat}. */
  chat(messages: readonly ChatMessage[], options?: ChatOptions): Promise<ChatResult>;
  /** Like {@link ModelManager.streamChat}. */
  streamChat(messages: readonly ChatMessage[], options?: ChatOptions): GenerationStream<ChatResult>;
  /** Like {@link ModelManager.embed}. */
  embed(text: string, options?: EmbedOptions): Promise<EmbedResult>;
  /** Like {@link ModelManager.embedMany}. */
  embedMany(texts: readonly string[], options?: EmbedOptions): Promise<EmbedManyResult>;
  /** Like {@link ModelManager.rank}. */
  rank(query: string, documents: readonly string[], options?: RankOptions): Promise<RankResult>;
  /** Like {@link ModelManager.tokenize}. */
  tokenize(text: string): Promise<number[]>;
  /** Like {@link ModelManager.detokenize}. */
  detokenize(tokens: readonly number[]): Promise<string>;
  /** Gives the model back. A second call does nothing. */
  release(): void;
}

/**
 * Loads, unloads and serves models.
 *
 * Lifecycle calls wait for the manager; reads and inference never do. Every call rejects with `closed` (or
 * `supervisor_exhausted`) once the tree has ended, and lifecycle calls with `request_aborted` if the manager is restarted
 * before it could answer.
 */
export interface ModelManager extends AsyncDisposable {
  readonly name: string;
  /** Resolves when the tree has ended, however. */
  readonly closed: Promise<CloseReason>;

  /**
   * Loads a model now and resolves when it is ready. The id is claimed and visible as `loading` at once; other calls do
   * not wait for it.
   *
   * Without `source`: a declared model that is not loaded, or one in status `error`, with the options it had.
   * @throws already_loaded, not_loaded (no such declared model), invalid_option, source_unavailable, storage_full,
   * invalid_model_file, unsupported_capability, estimate_failed, insufficient_memory, load_failed, load_cancelled (by an unload or close)
   */
  load(id: ModelId, source?: ModelSource, options?: LoadOptions): Promise<ModelInfo>;
  /**
   * Declares a lazy model: it is known, its file is checked, and the first request loads it. Resolves when the file has
   * been checked; of a model that is not on this machine only the header is fetched. One that is no good stays known in
   * status `error`, where another `register` may replace it.
   * @throws already_loaded, invalid_option, source_unavailable, invalid_model_file, unsupported_capability,
   * estimate_failed, load_cancelled (by a remove); `signal.reason`
   */
  register(id: ModelId, source: ModelSource, options?: RegisterOptions): Promise<ModelInfo>;
  /**
   * Closes admission, waits for what is in flight, then gives the memory back; resolves when it is free. During `loading`
   * it cancels the load. A declared model stays known as `registered`.
   * @throws not_loaded, unload_timeout, dispose_failed, invalid_option
   */
  unload(id: ModelId, options?: UnloadOptions): Promise<void>;
  /** Unloads and forgets a declared model; one that cannot be unloaded stays known. @throws like {@link ModelManager.unload} */
  remove(id: ModelId, options?: UnloadOptions): Promise<void>;
  /** Makes this the model that {@link DEFAULT_MODEL} stands for. @throws not_loaded, invalid_option */
  setDefault(id: ModelId): Promise<void>;
  /**
   * Sets another budget. With `overBudget: "evict-idle"` idle models are unloaded until what is left fits, and the call
   * waits for their memory; what is in use stays, also over the limit, and `memory()` shows it. New loads are refused until
   * they fit.
   * @throws invalid_option
   */
  setMemoryBudget(budget: MemoryBudget): Promise<MemoryReport>;
  /**
   * Resolves when no eager declared model is loading any more.
   * @throws AggregateError with the error of each of them in status `error`; `signal.reason`; request_timeout
   */
  ready(options?: WaitOptions): Promise<void>;
  /**
   * Refuses new work, lets what is in flight finish for `timeoutMs` (default 10,000), aborts the rest, disposes every
   * model. Ends 60 s after `timeoutMs` at the latest. A second call joins the first; the shorter time counts. What could
   * not be given back is in `closed`. Reads still answer afterwards.
   * @throws invalid_option, nothing else
   */
  close(options?: { readonly timeoutMs?: number | undefined }): Promise<void>;

  /** All models, in the order in which their ids were claimed. */
  list(): ModelInfo[];
  /** The view of one model now; `undefined` if no model of this id is known. */
  info(id: ModelId): ModelInfo | undefined;
  /** True while requests are admitted. */
  isLoaded(id: ModelId): boolean;
  /** The model that {@link DEFAULT_MODEL} stands for, if one was chosen. */
  defaultId(): ModelId | undefined;
  /** What the models hold and may still claim, per device. */
  memory(): MemoryReport;
  /** The actors that run now. */
  tree(): SupervisionNode;
  /** What has happened since the start, counted; `model-supervisor/metrics` gives it to Prometheus. */
  metrics(): MetricsSnapshot;

  /**
   * Goes on from a prompt as it is, without a chat template, and resolves to the whole text: 512 tokens at most, unless
   * `maxTokens` says otherwise. Waits for a free slot.
   *
   * `id` may be {@link DEFAULT_MODEL}, as in every inference call.
   * A model that is loading is waited for; one that is declared and lazy is loaded, and the call may reject with whatever
   * {@link ModelManager.load} does. After a failure it is not tried again by every request: `load_failed` then says for how
   * long (`retryAfterMs`).
   * @throws not_loaded, no_default_model, not_ready, unsupported_capability, invalid_option, queue_full,
   * context_length_exceeded, request_timeout, request_aborted, request_failed, backing_crashed; `signal.reason`, unwrapped
   */
  generate(id: ModelId, prompt: string, options?: GenerateOptions): Promise<GenerateResult>;
  /** Like {@link ModelManager.generate}, in pieces. Errors come from the iteration and from `result`. */
  stream(id: ModelId, prompt: string, options?: GenerateOptions): GenerationStream;
  /**
   * Answers a conversation, with the chat template of the model's file, tools and reasoning. Keeps nothing: give it all
   * messages each time; what of them was evaluated before is not evaluated again.
   * @throws like {@link ModelManager.generate}; also invalid_model_file if the file's chat template is broken, and
   * invalid_option of `messages` if it refuses this conversation
   */
  chat(id: ModelId, messages: readonly ChatMessage[], options?: ChatOptions): Promise<ChatResult>;
  /** Like {@link ModelManager.chat}, in pieces. Errors come from the iteration and from `result`. */
  streamChat(id: ModelId, messages: readonly ChatMessage[], options?: ChatOptions): GenerationStream<ChatResult>;
  /**
   * A vector of length 1 (unless `normalize` is false). An empty text is `invalid_option`. For many texts take
   * {@link ModelManager.embedMany}: calls of this one count against `maxQueue`, and are refused with `queue_full` beyond it.
   * @throws like {@link ModelManager.generate}
   */
  embed(id: ModelId, text: string, options?: EmbedOptions): Promise<EmbedResult>;
  /** Like {@link ModelManager.embed}, of any number of texts in one call; `parallel` of them are evaluated at once. */
  embedMany(id: ModelId, texts: readonly string[], options?: EmbedOptions): Promise<EmbedManyResult>;
  /** Scores documents by how well they answer a query, best first; for reranker models. @throws like {@link ModelManager.generate} */
  rank(id: ModelId, query: string, documents: readonly string[], options?: RankOptions): Promise<RankResult>;
  /** The ids of the tokens of a text, as the model's vocabulary has them; without begin token. */
  tokenize(id: ModelId, text: string): Promise<number[]>;
  /** The text of tokens. @throws invalid_option for an id outside the vocabulary */
  detokenize(id: ModelId, tokens: readonly number[]): Promise<string>;

  /**
   * Holds a model, so that it is not unloaded without force. Waits for it, or loads it, like a request does.
   * @throws not_loaded, no_default_model, not_ready, request_timeout, what a load rejects with; `signal.reason`
   */
  acquire(id: ModelId, options?: RequestOptions): Promise<Lease>;
  /**
   * Tells what a load would need and whether it would fit now. Loads nothing and reserves nothing; of a model that is
   * not on this machine yet only the header is fetched.
   * @throws like {@link ModelManager.load}, but never insufficient_memory; errors carry the source as `modelId`
   */
  plan(source: ModelSource, options?: ModelOptions): Promise<LoadPlan>;
  /** The machine's memory pools now. */
  devices(): Promise<readonly DeviceInfo[]>;

  /** Calls the listener for each event of this name. @throws invalid_option for a name that is not known */
  on<Name extends keyof ModelManagerEvents>(event: Name, listener: ModelManagerEvents[Name]): this;
  /** Like {@link ModelManager.on}, for the next event only. */
  once<Name extends keyof ModelManagerEvents>(event: Name, listener: ModelManagerEvents[Name]): this;
  /** Takes a listener away. */
  off<Name extends keyof ModelManagerEvents>(event: Name, listener: ModelManagerEvents[Name]): this;
}
