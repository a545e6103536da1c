/**
 * The port between the manager and an engine. A backend knows one kind of engine; a backing is one live model of it.
 * Everything that a backing acquires it gives back in `dispose`; nothing else may touch its native objects.
 */
import type {
  ChatMessage,
  ChatOptions,
  FinishReason,
  GenerateOptions,
  GenerationPart,
  JsonSchema,
  Priority,
  RequestPhase,
  StepReport,
  Timings,
  TokenLogprob,
  ToolCall,
  Usage,
} from "../inference.js";
import type { Capability, DeviceInfo, Mode, ModelId, ModelSource, SlotLayout } from "../model.js";

/** How a model is to be placed and run, as the caller gave it. Backends refuse what they cannot honour. */
export interface EngineOptions {
  /** Layers to put on the GPU. Default `"auto"`: as many as fit. */
  readonly gpuLayers?: number | "auto" | "max" | undefined;
  /** How a model is split over GPUs. node-llama-cpp refuses this, `tensorSplit`, `mainGpu`, and with a GPU `offloadKqv: false`. */
  readonly splitMode?: "none" | "layer" | "row" | undefined;
  /** Weights of the split over the GPUs; a zero leaves that GPU out; empty = equal shares. */
  readonly tensorSplit?: readonly number[] | undefined;
  readonly mainGpu?: number | undefined;
  /** `false` keeps the KV cache in RAM. */
  readonly offloadKqv?: boolean | undefined;
  /** Tokens per slot. Default `min(4096, trained context)`. */
  readonly contextSize?: number | undefined;
  /** Slots of `server` mode, and texts that are embedded or ranked at once (at most `threads`); 1 to 256. Default 4. */
  readonly parallel?: number | undefined;
  readonly kvCacheType?: "f16" | "q8_0" | "q4_0" | undefined;
  /** Tokens evaluated in one native call at most. Default 512. */
  readonly batchSize?: number | undefined;
  readonly flashAttention?: boolean | undefined;
  /** Look through all weights while they are loaded; numbers that are none are `invalid_model_file`. Default false. */
  readonly checkTensors?: boolean | undefined;
  /**
   * CPU threads of this model, at most the supervisor's `maxThreads`, all of them for one context. Default: up to
   * `maxThreads`, and how they are best spread over contexts is measured at the first load, see {@link SlotLayout}.
   */
  readonly threads?: number | undefined;
  /** Slots of a context that decode in one step at most. Default: what is fastest, measured at the first load. */
  readonly decodeWidth?: number | undefined;
  /** Requests that may wait for a slot, and as many calls of `embed` or `rank` for a context. Default 64. */
  readonly maxQueue?: number | undefined;
}

/** What a caller lets {@link Backend.resolve} do, and wants to hear of it. */
export interface ResolveContext {
  /**
   * False: of a model that is not on this machine only what tells its need is fetched, or it is `source_unavailable`. What
   * comes out is for {@link Backend.estimate} alone, and for as long as the signal has not aborted. Default true.
   */
  readonly mayDownload?: boolean | undefined;
  /** Called with the share of the model's files that is here, 0 to 1, while something is downloaded. Must not throw. */
  readonly onDownload?: ((fraction: number) => void) | undefined;
}

/** A model that has been found and checked, but not loaded. Backends extend it with what they need later. */
export interface ResolvedModel {
  readonly source: ModelSource;
  /** Size of the model's files. */
  readonly sizeBytes: number;
  /** Everything that this model can do. */
  readonly supports: readonly Capability[];
  /** What it is for, when the caller does not say. */
  readonly defaultCapabilities: readonly Capability[];
  /** Tokens that the model was trained to look back on. */
  readonly trainedContextSize: number;
}

/** What is to be started: {@link EngineOptions} with every default filled in. */
export interface ModelProfile extends EngineOptions {
  readonly mode: Mode;
  readonly capabilities: readonly Capability[];
  readonly contextSize: number;
  readonly parallel: number;
  readonly threads: number;
  /** True: the caller has set `threads`. */
  readonly threadsAreSet?: boolean;
  readonly maxQueue: number;
}

/** Bytes that a model needs or holds, before they are spread over the GPUs. */
export interface MemoryNeed {
  /** Stays in RAM whatever the placement. */
  readonly ramBytes: number;
  /** Goes to the GPUs, for the layers that were put there. */
  readonly gpuWeightsBytes: number;
  /** KV cache and compute buffers of those layers. */
  readonly gpuContextBytes: number;
  /** The part of `ramBytes` that is a mapping of the model's file: the system counts such pages as free. */
  readonly mappedBytes: number;
  /** Set where models may share their weights in memory: those are then counted once for all with one key. */
  readonly shared?: SharedNeed | undefined;
}

/** The weights in a {@link MemoryNeed}: all of `gpuWeightsBytes` and `mappedBytes`, and of the RAM this much. */
export interface SharedNeed {
  /** The same key: the same bytes in memory, whoever else holds them. */
  readonly key: string;
  /** Part of the need's `ramBytes`. */
  readonly ramBytes: number;
}

/** What a load will need. */
export interface Estimate extends MemoryNeed {
  /** `"auto"` and `"max"` have become a number. */
  readonly gpuLayers: number;
}

export interface StartSpec {
  readonly modelId: ModelId;
  readonly incarnation: number;
  readonly model: ResolvedModel;
  readonly profile: ModelProfile;
  readonly gpuLayers: number;
}

/** How many requests may wait for a slot, over all models of a supervisor. Every backing asks before it lets one wait. */
export interface QueueLimit {
  readonly limit: number;
  /** Requests that wait now. */
  readonly waiting: number;
  /** One more waits. False if there are too many already. */
  enter(): boolean;
  /** One that has entered waits no more. */
  leave(): void;
}

/** Who wants to know what each step of a model's slots did. */
export interface StepListener {
  /** Asked before each step is told: nothing is made for nobody. */
  readonly isHeard: boolean;
  tell(step: StepReport): void;
}

export interface StartContext {
  /** Aborts the load; `start` then rejects, with everything given back. */
  readonly signal: AbortSignal;
  /** CPU threads that all models of this supervisor together may use. */
  readonly maxThreads: number;
  /** Absent: no limit beyond that of each model. */
  readonly queueLimit?: QueueLimit | undefined;
  readonly steps?: StepListener | undefined;
  /** Share of the weights that has been read, 0 to 1. Absent where nobody listens, since telling costs some milliseconds. */
  readonly onProgress?: ((fraction: number) => void) | undefined;
}

/** How a backing ended. */
export type BackingExit =
  | { readonly reason: "disposed" }
  | {
      readonly reason: "crashed";
      readonly cause: unknown;
      readonly exitCode?: number | undefined;
      readonly signal?: string | undefined;
    };

/** One request, from the dispatcher to the backing. */
export interface BackingRequest {
  readonly id: string;
  /** Once aborted, the backing's promise settles as soon as the engine is quiet for this request. */
  readonly signal: AbortSignal;
  /** Whose request it is, default `""`: what was evaluated for one scope must not serve another. */
  readonly scope?: string | undefined;
  /** Default `"interactive"`. */
  readonly priority?: Priority | undefined;
  /** Called with each piece of text, in order, never after the promise has settled. Must not throw. */
  readonly onPart?: ((part: GenerationPart) => void) | undefined;
  /** True while the caller has more unread than it may have: nothing is to be produced before `onResume`. */
  readonly isPaused?: boolean | undefined;
  /** Set by the backing, called when `isPaused` has become false again. */
  onResume?: (() => void) | undefined;
  /** Written by the backing when the request has to wait for a slot: its place in the queue, from 1. */
  queuePosition?: number | undefined;
  /** Written by the backing as the request moves on; read for the phase of `request_timeout`. */
  phase: RequestPhase;
}

/** {@link SamplingOptions} with every default filled in. */
export interface Sampling {
  /** `undefined`: 512, or what the context has left. */
  readonly maxTokens: number | undefined;
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly seed: number | undefined;
  readonly stop: readonly string[];
  readonly repeatPenalty: number;
  /** Pairs of a token and what is added to its logit; -100 bans it. */
  readonly logitBias?: readonly (readonly [token: number, bias: number])[] | undefined;
  /** How many of the likeliest tokens to tell beside each token's own probability. `undefined`: tell nothing. */
  readonly topLogprobs?: number | undefined;
  /** As the caller gave it. Refused with `invalid_option` before anything runs, if the engine cannot honour all of it. */
  readonly jsonSchema?: JsonSchema | undefined;
  /** GBNF text, likewise. Never beside `jsonSchema`. */
  readonly grammar?: string | undefined;
  readonly onOverflow?: GenerateOptions["onOverflow"];
}

/** What a chat has besides, as the caller gave it. Schemas of tools are refused like `jsonSchema`. */
export interface ChatSampling extends Sampling, Pick<ChatOptions, "tools" | "toolChoice" | "enableThinking"> {}

export interface Completion {
  readonly text: string;
  readonly finishReason: FinishReason;
  readonly usage: Usage;
  readonly timings: Timings;
  /** Where the sampling asks for them: one for each completion token. */
  readonly logprobs?: readonly TokenLogprob[];
  /** Only of a chat that made any; each has been a part before. */
  readonly toolCalls?: readonly ToolCall[] | undefined;
  /** Only of a chat that has some. */
  readonly reasoning?: string | undefined;
}

/** What to do with a text that does not fit: cut it at its end, or refuse it with `context_length_exceeded`. */
export type Overflow = "truncate" | "refuse";

export interface Embeddings {
  readonly embeddings: readonly (readonly number[])[];
  readonly truncated: readonly boolean[];
  readonly promptTokens: number;
}

export interface Ranking {
  readonly scores: readonly number[];
  readonly truncated: readonly boolean[];
  readonly promptTokens: number;
}

/**
 * One live model. It has the methods of its capabilities and no others; {@link Backing.tokenize} and
 * {@link Backing.detokenize} where it has a tokenizer.
 *
 * Inference promises settle only when the engine is quiet for that request, also after an abort. They reject with
 * the signal's reason after an abort, with a typed error for what the caller did wrong, or with the engine's error.
 */
export interface Backing {
  /** Settles when the backing has ended, by `dispose` or by itself. Never rejects. All requests settle as well. */
  readonly exited: Promise<BackingExit>;
  /** The engine's own model object, where it lives in this process. */
  readonly native?: unknown;
  /** How its slots are run, where the backing has chosen. */
  readonly layout?: SlotLayout;
  /** What the engine says it holds now. */
  memory(): MemoryNeed;
  /** Requests that wait for a slot or a context now. */
  queued(): number;
  generate?(prompt: string, sampling: Sampling, request: BackingRequest): Promise<Completion>;
  chat?(messages: readonly ChatMessage[], sampling: ChatSampling, request: BackingRequest): Promise<Completion>;
  /** Vectors as the model gives them, in the order of the texts. An empty text is `invalid_option`. */
  embed?(texts: readonly string[], overflow: Overflow, request: BackingRequest): Promise<Embeddings>;
  /** Scores between 0 and 1, in the order of the documents. An empty query or document is `invalid_option`. */
  rank?(query: string, documents: readonly string[], overflow: Overflow, request: BackingRequest): Promise<Ranking>;
  tokenize?(text: string): Promise<number[]>;
  /** Rejects with `invalid_option` for an id outside the vocabulary. */
  detokenize?(tokens: readonly number[]): Promise<string>;
  /**
   * Gives everything back. Called when no request is in flight; if one is nevertheless, it is aborted and its
   * settlement awaited first. A second call returns the same promise. Resolves when the memory is free.
   */
  dispose(): Promise<void>;
}

/** An engine. Give one to `ModelSupervisor.start({ backend })`; in tests, the fake of `model-supervisor/testing`. */
export interface Backend {
  readonly name: string;
  /** The machine's memory pools now. Rejects when they cannot be told; an empty list of GPUs means that there are none. */
  devices(): Promise<readonly DeviceInfo[]>;
  /**
   * Finds and checks the model without loading it; downloads it where it may and must.
   * Rejects with `source_unavailable`, `storage_full`, `invalid_model_file`, or `invalid_option` for an option or a source
   * it cannot honour; at once with the signal's reason.
   */
  resolve(
    source: ModelSource,
    options: EngineOptions,
    signal: AbortSignal,
    context?: ResolveContext,
  ): Promise<ResolvedModel>;
  /** Tells what a load will need. Rejects with `estimate_failed`. */
  estimate(model: ResolvedModel, profile: ModelProfile): Promise<Estimate>;
  /**
   * Loads. On failure or abort everything acquired on the way has been given back when it rejects: with
   * `insufficient_memory` where the engine could not allocate, so that room may be made and the load tried again.
   */
  start(spec: StartSpec, context: StartContext): Promise<Backing>;
}
