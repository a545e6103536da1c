/** What callers say to a model and what they get back. Shared by the public surface and the backends. */

/** How a caller may end a wait. */
export interface WaitOptions {
  /** Ends the wait; the call rejects with `signal.reason`, unwrapped. */
  readonly signal?: AbortSignal | undefined;
  /** Milliseconds; then `request_timeout`. Default: none. */
  readonly timeoutMs?: number | undefined;
}

/** Options of every inference call. */
export interface RequestOptions {
  /** Aborts the request; the call rejects with `signal.reason`, unwrapped. */
  readonly signal?: AbortSignal | undefined;
  /** Milliseconds for the whole request (load, queue, prefill, decode); then `request_timeout`. Default: none. */
  readonly timeoutMs?: number | undefined;
  /**
   * False: a request whose model is not ready is refused with `not_ready`, and no load is begun for it. Default true: it
   * waits for a load under way, or for the one that it begins.
   */
  readonly waitForLoad?: boolean | undefined;
}

/**
 * A JSON schema: a plain object, such as a `JSONSchema7` or what `z.toJSONSchema()` gives. What it may hold is said at
 * {@link SamplingOptions.jsonSchema}.
 */
export type JsonSchema = object;

/** How tokens are chosen and when to stop. */
export interface SamplingOptions {
  /**
   * Tokens to produce at most, at least 1. Default 512, or what the context has left if that is less. A number given
   * here that does not fit beside the prompt is refused with `context_length_exceeded`.
   */
  readonly maxTokens?: number | undefined;
  /** 0 is greedy: the same prompt gives the same text. Default 0.8. */
  readonly temperature?: number | undefined;
  /** Keep the `topK` likeliest tokens; 0 keeps all. Default 40. */
  readonly topK?: number | undefined;
  /** Keep the likeliest tokens whose probabilities reach this sum. Default 0.95. */
  readonly topP?: number | undefined;
  /** Drop tokens less likely than this share of the likeliest one. Default 0.05. */
  readonly minP?: number | undefined;
  /** A whole number from 0 to 2^32 - 1. The same seed repeats a sampled text. Default: a fresh one each time. */
  readonly seed?: number | undefined;
  /** Text at which to stop; it is not part of the result. Up to 16 non-empty strings. */
  readonly stop?: string | readonly string[] | undefined;
  /** Makes the last 64 tokens less likely to come again; 1 (the default) is off. */
  readonly repeatPenalty?: number | undefined;
  /**
   * By token id, what is added to the token's logit before anything else: -100 to 100, where -100 bans the token. Ids
   * outside the vocabulary, and tokens that end a text, are refused with `invalid_option`. Up to 1024 tokens.
   */
  readonly logitBias?: Readonly<Record<number, number>> | undefined;
  /**
   * `true` tells for each token of the text how likely it was; see {@link TokenLogprob}. Default false, which costs
   * nothing. With a schema or grammar and a `seed`, the text may be another one than without.
   */
  readonly logprobs?: boolean | undefined;
  /** Beside `logprobs: true`: for each token also the likeliest ones in its place, so many at most, 0 to 20. Default 0. */
  readonly topLogprobs?: number | undefined;
  /**
   * The text is JSON that obeys this schema. In it: `type` (`object`, `array`, `string`, `number`, `integer`, `boolean`,
   * `null`), `properties` (each is written, in this order), `additionalProperties` (default false), `required`, `items`,
   * `prefixItems`, `enum`, `const`, `oneOf` and `anyOf` (alike), `$ref` to `$defs`, lengths and counts, `format` of dates and times. Other
   * keywords are refused, for they would have no effect.
   * Text that `maxTokens` cuts is closed to valid JSON, which need not obey the schema; its `finishReason` is `length`.
   * Text that ends at one of `stop` is not closed.
   */
  readonly jsonSchema?: JsonSchema | undefined;
  /** The text is one of this grammar (GBNF, at most 64 KiB), or the beginning of one if it is cut. Not beside `jsonSchema`. */
  readonly grammar?: string | undefined;
}

/** How urgent a request is; see {@link GenerateOptions.priority}. */
export type Priority = "interactive" | "system" | "background";

/** Options of `generate`, `stream`, `chat` and `streamChat`. */
export interface GenerateOptions extends SamplingOptions, RequestOptions {
  /**
   * Whose request this is, up to 200 characters, such as the id of a user. A prompt that begins like an earlier one of
   * the same scope is not evaluated from the start again (`usage.cachedTokens`); nothing that was evaluated for one
   * scope serves another. Where requests wait for a slot, scopes take turns. Default `""`.
   */
  readonly scope?: string | undefined;
  /**
   * Who goes first where requests wait for a slot: `"interactive"` (the default), then `"system"`, then `"background"`.
   * A request that has waited for 5 s counts as one level more urgent, so none waits for ever.
   */
  readonly priority?: Priority | undefined;
  /**
   * Streams only: milliseconds after which a stream that still runs is aborted (`request_aborted`) when its consumer, who has
   * begun to read, leaves lying what is there to be read. Default 60,000; `Infinity` never.
   */
  readonly idleConsumerMs?: number | undefined;
  /**
   * What to do where the prompt and `maxTokens` do not fit into the context. Default: refuse with
   * `context_length_exceeded`. In no case is the context shifted while the model speaks.
   *
   * `truncate-oldest`: evaluate less of the prompt, and say how much less in `usage.truncatedTokens`. A prompt keeps its
   * begin token and its end; a chat loses its oldest messages after the leading system messages, whole, those of one
   * exchange together, never the last one, and tool calls only with their results. Without `maxTokens`, room is made for
   * 512 tokens or half of the context, whichever is less. `stop`: the prompt must fit; the text ends with `finishReason`
   * `length` where the context is full.
   */
  readonly onOverflow?: "truncate-oldest" | "stop" | undefined;
}

/** Options of `chat` and `streamChat`. */
export interface ChatOptions extends GenerateOptions {
  /** What the model may call, at most 128. Not beside `jsonSchema` or `grammar`. */
  readonly tools?: readonly ToolDefinition[] | undefined;
  /**
   * `auto` (default): the model decides. `none`: it is not told of the tools. `required`: it calls at least one
   * (unless `maxTokens` or the end of its reasoning comes first).
   * `{ name }`: it calls this one and no other.
   */
  readonly toolChoice?: "auto" | "none" | "required" | { readonly name: string } | undefined;
  /**
   * `false`: answer without reasoning first, for models that reason. Default: as the model does by itself. Refused with
   * `invalid_option` where the model's format has no way to say so; `true` also where it knows no reasoning.
   */
  readonly enableThinking?: boolean | undefined;
}

/** A function that a model may call. */
export interface ToolDefinition {
  /** 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`; each name once. */
  readonly name: string;
  /** Told to the model: what the function does, and when to call it. */
  readonly description?: string | undefined;
  /**
   * JSON schema of the arguments, of type `object`; what it may hold is said at {@link SamplingOptions.jsonSchema}. The
   * arguments of a call obey it. Without one the tool takes no arguments.
   */
  readonly parameters?: JsonSchema | undefined;
}

/** A call that the model made. */
export interface ToolCall {
  /** Answer it with a `tool` message of this id. */
  readonly id: string;
  readonly name: string;
  readonly arguments: Readonly<Record<string, unknown>>;
}

/** What the model said. */
export interface AssistantMessage {
  readonly role: "assistant";
  readonly content: string;
  /** What it thought before that. How much of it is shown to the model again is for the model's format to say. */
  readonly reasoning?: string | undefined;
  /** What it called. Each is answered by a `tool` message that follows at once. */
  readonly toolCalls?: readonly ToolCall[] | undefined;
}

/** What a tool call gave. */
export interface ToolMessage {
  readonly role: "tool";
  /** The id of a call of the assistant message before. */
  readonly toolCallId: string;
  readonly content: string;
}

/** One turn of a conversation. */
export type ChatMessage =
  { readonly role: "system" | "user"; readonly content: string } | AssistantMessage | ToolMessage;

/**
 * `stop`: the model ended; `tool-calls`: it ended and waits for the results of what it called; `length`: `maxTokens` or
 * the context was used up; `stop-sequence`: one of `stop` came.
 */
export type FinishReason = "stop" | "length" | "stop-sequence" | "tool-calls";

/** Tokens counted exactly as the engine evaluated them. */
export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /**
   * The part of `promptTokens` that did not have to be evaluated, since a slot still had it from an earlier request of
   * the same `scope`. Less than `promptTokens`; always 0 in `direct` mode.
   */
  readonly cachedTokens: number;
  /** Tokens of the prompt that were left out, with `onOverflow: "truncate-oldest"`; only there if there are any. */
  readonly truncatedTokens?: number;
}

/** A token, and how likely it was. */
export interface LikelyToken {
  readonly token: number;
  /** Its text after the tokens before it. U+FFFD stands for a part of a character; special tokens may have none. */
  readonly text: string;
  /**
   * Natural logarithm of the probability with which the engine drew from what was left to choose from: after `logitBias`,
   * `repeatPenalty`, schema or grammar, `topK`, `topP`, `minP` and `temperature`. At temperature 0, which takes the likeliest
   * without drawing, it is that of the whole vocabulary at temperature 1, before `topK`, `topP` and `minP`. So the model's
   * own distribution is seen at temperature 0, or with `temperature: 1, topK: 0, topP: 1, minP: 0`.
   */
  readonly logprob: number;
}

/** A token of a text; with `topLogprobs`, what else could have stood in its place, likeliest first. */
export interface TokenLogprob extends LikelyToken {
  readonly top?: readonly LikelyToken[];
}

/** Milliseconds. */
export interface Timings {
  readonly queueMs: number;
  readonly prefillMs: number;
  readonly decodeMs: number;
  /** From the call to the first token, the queue included. */
  readonly timeToFirstTokenMs: number;
}

/** What `generate` resolves to. */
export interface GenerateResult {
  readonly text: string;
  readonly finishReason: FinishReason;
  readonly usage: Usage;
  readonly timings: Timings;
  /** With `logprobs`: one for each of `usage.completionTokens`, also for those that a stop sequence took out of the text. */
  readonly logprobs?: readonly TokenLogprob[];
  readonly modelId: string;
  readonly requestId: string;
}

/** What `chat` resolves to. */
export interface ChatResult extends GenerateResult {
  /** In the order in which they were made. A call that was cut by `maxTokens` is not among them. */
  readonly toolCalls: readonly ToolCall[];
  /** What the model thought; it is no part of `text`. Absent if it did not. */
  readonly reasoning?: string;
}

/** A piece of a running generation. */
export type GenerationPart =
  /** `logprobs`: of the tokens sampled since the part before; their text may follow in a later part, or in none. */
  | { readonly type: "text"; readonly text: string; readonly logprobs?: readonly TokenLogprob[] }
  | { readonly type: "reasoning"; readonly text: string }
  | { readonly type: "tool-call"; readonly toolCall: ToolCall }
  | { readonly type: "finish"; readonly finishReason: FinishReason; readonly usage: Usage };

/** Options of `rank`. */
export interface RankOptions extends RequestOptions {
  /** Cut a text that does not fit at its end, and say so in the result. Default: refuse with `context_length_exceeded`. */
  readonly truncate?: boolean | undefined;
}

/** Options of `embed` and `embedMany`. */
export interface EmbedOptions extends RankOptions {
  /** Scale vectors to length 1 (Euclidean norm). Default true; `false` keeps them as the model gives them. */
  readonly normalize?: boolean | undefined;
  /**
   * Keep only so many numbers of each vector, for models that were trained for that (Matryoshka); scaled to length 1 after
   * the cut, unless `normalize` is false. More than the model gives is `invalid_option`. Default: all.
   */
  readonly dimensions?: number | undefined;
}

/** What `embed` resolves to. */
export interface EmbedResult {
  readonly embedding: number[];
  /** Tokens that were evaluated. */
  readonly usage: { readonly promptTokens: number };
  /** True if the text was cut to fit, which only `truncate` allows. */
  readonly truncated: boolean;
}

/** What `embedMany` resolves to, in the order of the texts. */
export interface EmbedManyResult {
  readonly embeddings: number[][];
  readonly usage: { readonly promptTokens: number };
  readonly truncated: boolean[];
}

/** What `rank` resolves to, best first. Scores lie between 0 and 1. */
export interface RankResult {
  readonly results: {
    /** Its place in the documents as they were given. */
    readonly index: number;
    readonly score: number;
    readonly document: string;
    /** True if it was cut to fit, which only `truncate` allows. */
    readonly truncated: boolean;
  }[];
  readonly usage: { readonly promptTokens: number };
}

/** Where a request is. `load` is before a backing has it. */
export type RequestPhase = "load" | "queue" | "prefill" | "decode";

/** What one step of a model's slots did: of one context, if the model has several. */
export interface StepReport {
  readonly modelId: string;
  readonly incarnation: number;
  /** Slots of this context with a request. */
  readonly activeSlots: number;
  /** Requests of this model that wait for a slot. */
  readonly queued: number;
  /** Tokens evaluated: one for each slot that decoded, and those of prompts. */
  readonly batchTokens: number;
  readonly decodeTokens: number;
  readonly prefillTokens: number;
  readonly ms: number;
}
