/** One request on one sequence of the engine: its native steps, and what becomes of the tokens. */
import type {
  LlamaContextSequence,
  SequenceEvaluateMetadataOptions,
  SequenceEvaluateOptions,
  Token,
} from "node-llama-cpp";
import type { FinishReason, ToolCall } from "../../inference.js";
import type { BackingRequest, Completion } from "../backend.js";
import { isNoTokenError } from "./sampling-guard.js";
import type { Progress, Work } from "./scheduler/step-plan.js";
import { InvalidOptionError } from "../../errors.js";
import { closeJson } from "./close-json.js";
import { Logprobs, type SampledToken } from "./logprobs.js";
import { StopScanner, TokenText, type PieceCache, type StopText } from "./text.js";
import type { TurnPart, TurnReader } from "./turn-reader.js";

/** What is used of the engine's sequence; a test's double has no more. */
export interface Sequence extends UsedOfSequence {
  evaluateWithMetadata(
    tokens: Token[],
    metadata: SequenceEvaluateMetadataOptions,
    options: SequenceEvaluateOptions,
  ): AsyncGenerator<SampledToken, void, void | Token | Token[]>;
}

type UsedOfSequence = Pick<
  LlamaContextSequence,
  | "evaluateWithoutGeneratingNewTokens"
  | "contextTokens"
  | "nextTokenIndex"
  | "needsCheckpoints"
  | "eraseContextTokenRanges"
  | "clearHistory"
  | "dispose"
>;

/** A request that is ready to run: tokenized, checked against the slot's size. */
export interface Job {
  readonly request: BackingRequest;
  /** Aborts the job; also when the backing closes. */
  readonly signal: AbortSignal;
  readonly submittedAt: number;
  readonly tokens: readonly Token[];
  /** Whose tokens these are: only a cache of the same scope is reused. */
  readonly scope: string;
  /** The tokens whose text the job's text continues. */
  readonly textBefore: readonly Token[];
  readonly maxTokens: number;
  readonly stopTokens: ReadonlySet<Token>;
  readonly stopTexts: readonly StopText[];
  readonly sampling: SequenceEvaluateOptions;
  /** How many of the likeliest tokens to tell with each token's probability; `undefined`: nothing is told. */
  readonly topLogprobs?: number | undefined;
  /** What the sampling's repeat penalty reads; the run adds each token it samples. */
  readonly punishable: Token[];
  /** The sampling has a grammar: special tokens are text as the grammar saw it, and JSON that is cut is closed. */
  readonly structure: "json" | "grammar" | undefined;
  /** Of a chat: tells text from reasoning and tool calls. The stop texts are then looked for in text alone. */
  readonly reader?: TurnReader | undefined;
  /** Tokens of the prompt that were left out. */
  readonly truncatedTokens?: number;
}

export class SlotRun {
  readonly job: Job;
  readonly #sequence: Sequence;
  readonly #text: TokenText;
  readonly #stops: StopScanner;
  readonly #startedAt = performance.now();
  readonly #cachedTokens: number;
  #evaluatedTokens: number;
  #isSound = true;
  readonly #logprobs: Logprobs | undefined;
  #iterator: AsyncGenerator<SampledToken, void, void | Token | Token[]> | undefined;
  /** The last token sampled: the next one is evaluated from it. */
  #lastToken: Token | undefined;
  #sampled: IteratorResult<SampledToken, void> | undefined;
  /** The step in which it was sampled. */
  #lastStep = 0;
  #completionTokens = 0;
  #completionText = "";
  #reasoning = "";
  readonly #toolCalls: ToolCall[] = [];
  #firstTokenAt: number | undefined;
  #completion: Completion | undefined;
  #failure: { readonly error: unknown } | undefined;

  /** `cachedTokens`: the beginning of the prompt that the sequence holds; it must hold nothing else. */
  constructor(job: Job, sequence: Sequence, pieces: PieceCache, cachedTokens: number) {
    this.job = job;
    this.#sequence = sequence;
    this.#cachedTokens = cachedTokens;
    this.#evaluatedTokens = cachedTokens;
    this.#text = new TokenText(pieces, job.textBefore);
    this.#stops = new StopScanner(job.stopTexts);
    if (job.topLogprobs !== undefined) this.#logprobs = new Logprobs(pieces, job.topLogprobs, job.textBefore);
    job.request.phase = "prefill";
  }

  /** Its reader is behind: nothing more is to be produced now. */
  get isPaused(): boolean {
    return this.job.request.isPaused === true;
  }

  get progress(): Progress {
    return {
      promptTokens: this.job.tokens.length,
      evaluatedTokens: this.#evaluatedTokens,
      decodes: this.#lastToken !== undefined,
      isPaused: this.isPaused,
      lastStep: this.#lastStep,
    };
  }

  /** Set once the text has ended. */
  get completion(): Completion | undefined {
    return this.#completion;
  }

  /** Set once the engine has failed on this request. */
  get failure(): { readonly error: unknown } | undefined {
    return this.#failure;
  }

  /** False once the engine has failed on this sequence, even if it went on: what is in the cache then nobody knows. */
  get isSound(): boolean {
    return this.#isSound;
  }

  /**
   * The native part of a step; runs beside those of the other slots and never rejects. It changes nothing when it
   * fails, so that it can be tried again.
   */
  async advance(work: Work, step: number): Promise<void> {
    this.#failure = undefined;
    try {
      if (work.type === "prefill") {
        const end = this.#evaluatedTokens + work.tokens;
        await this.#sequence.evaluateWithoutGeneratingNewTokens(this.job.tokens.slice(this.#evaluatedTokens, end));
        this.#evaluatedTokens = end;
      } else if (work.type !== "wait") {
        const metadata = this.#logprobs?.metadata ?? {};
        this.#iterator ??= this.#sequence.evaluateWithMetadata(this.#nextTokens(), metadata, this.job.sampling);
        this.#sampled = await this.#iterator.next();
        this.#lastStep = step;
      }
    } catch (error) {
      this.#iterator = undefined;
      this.#isSound = false;
      this.#failure = { error: this.#asCallersError(error) };
    }
  }

  /** No token is left where the grammar goes on: its author is to be told, not the engine blamed. */
  #asCallersError(error: unknown): unknown {
    const { structure, reader } = this.job;
    const isRestricted = structure !== undefined || reader?.grammars.state !== undefined;
    if (!isRestricted || !isNoTokenError(error)) return error;
    const expected = `what this model's vocabulary can spell; no token fits after ${JSON.stringify(this.#completionText)}`;
    if (structure === undefined) return new InvalidOptionError("tools", expected, "others");
    return new InvalidOptionError(structure === "json" ? "jsonSchema" : "grammar", expected, "another text");
  }

  /** What was sampled in the step becomes text and goes to the caller. */
  deliver(): void {
    const sampled = this.#sampled;
    this.#sampled = undefined;
    if (sampled === undefined) return;
    if (this.#firstTokenAt === undefined) {
      this.#firstTokenAt = performance.now();
      this.#evaluatedTokens = this.job.tokens.length;
      this.job.request.phase = "decode";
    }
    try {
      if (sampled.done === true || this.job.stopTokens.has(sampled.value.token)) this.#finish("stop");
      else this.#accept(sampled.value);
    } catch (error) {
      this.#failure = { error };
    }
  }

  /** Ends the native iteration; the sequence is quiet afterwards. */
  async close(): Promise<void> {
    await this.#iterator?.return();
    this.#iterator = undefined;
  }

  #nextTokens(): Token[] {
    return this.#lastToken === undefined ? this.job.tokens.slice(this.#evaluatedTokens) : [this.#lastToken];
  }

  #accept(sampled: SampledToken): void {
    const { token } = sampled;
    this.#logprobs?.add(sampled);
    this.#lastToken = token;
    this.#completionTokens++;
    this.job.punishable.push(token);
    const { reader } = this.job;
    if (reader === undefined) this.#say(this.#text.push(token));
    else this.#take(reader.read(token, this.#text));
    if (this.#completion === undefined && this.#completionTokens >= this.job.maxTokens) this.#finish("length");
  }

  /** Text, of which the end may belong to a stop sequence. */
  #say(piece: string): void {
    const { text, stop } = this.#stops.push(piece);
    this.#give(text);
    if (stop !== undefined) this.#complete(stop.byUser ? "stop-sequence" : "stop");
  }

  #take(parts: readonly TurnPart[]): void {
    for (const part of parts) {
      if (this.#completion !== undefined) return;
      if (part.type === "text") {
        this.#say(part.text);
        continue;
      }
      this.#give(this.#stops.end());
      if (part.type === "end") this.#complete("stop");
      else {
        if (part.type === "reasoning") this.#reasoning += part.text;
        else this.#toolCalls.push(part.toolCall);
        this.job.request.onPart?.(part);
      }
    }
  }

  /** No more tokens come: what was held back is text after all, unless its end completes a stop sequence. */
  #finish(reason: "stop" | "length"): void {
    const { reader, structure } = this.job;
    if (reader === undefined) this.#say(this.#text.end());
    else this.#take(reader.end(this.#text, reason === "length"));
    if (this.#completion !== undefined) return;
    this.#give(this.#stops.end());
    if (reason === "length" && structure === "json") this.#give(closeJson(this.#completionText));
    this.#complete(reason);
  }

  #give(text: string): void {
    if (text === "") return;
    this.#completionText += text;
    this.job.request.onPart?.({ type: "text", text, ...(this.#logprobs && { logprobs: this.#logprobs.take() }) });
  }

  #complete(finishReason: FinishReason): void {
    const now = performance.now();
    const firstTokenAt = this.#firstTokenAt ?? now;
    const { submittedAt, tokens, truncatedTokens = 0 } = this.job;
    this.#completion = {
      text: this.#completionText,
      finishReason: finishReason === "stop" && this.#toolCalls.length > 0 ? "tool-calls" : finishReason,
      ...(this.#toolCalls.length > 0 && { toolCalls: this.#toolCalls }),
      ...(this.#reasoning !== "" && { reasoning: this.#reasoning }),
      usage: {
        promptTokens: tokens.length,
        completionTokens: this.#completionTokens,
        cachedTokens: this.#cachedTokens,
        ...(truncatedTokens > 0 && { truncatedTokens }),
      },
      timings: {
        queueMs: this.#startedAt - submittedAt,
        prefillMs: firstTokenAt - this.#startedAt,
        decodeMs: now - firstTokenAt,
        timeToFirstTokenMs: firstTokenAt - submittedAt,
      },
      ...(this.#logprobs && { logprobs: this.#logprobs.all }),
    };
  }
}
