/**
 * What needs no slot: embeddings and rankings on a standing context, one text at a time, and generation on a context
 * that is made for the call and given back after it.
 */
import type { LlamaContext, LlamaEmbeddingContext, LlamaModel, LlamaRankingContext, Token } from "node-llama-cpp";
import { ContextLengthExceededError, InvalidOptionError, QueueFullError } from "../../errors.js";
import type {
  BackingRequest,
  Completion,
  Embeddings,
  Overflow,
  QueueLimit,
  Ranking,
  StepListener,
} from "../backend.js";
import { newSequence } from "./contexts.js";
import { checkText } from "./sampling.js";
import { SlotServer } from "./slot-server.js";
import type { Job } from "./slot-run.js";
import { Turns } from "./turns.js";

/** Names the model in errors and tells how long a text may be. */
export interface TextLimits {
  readonly modelId: string;
  readonly contextSize: number;
}

/** Embeds texts. Calls take turns text by text, so that a long list does not keep a single text waiting. */
export class Embedder {
  readonly #context: LlamaEmbeddingContext;
  readonly #limits: TextLimits;
  readonly #turns = new Turns();

  constructor(context: LlamaEmbeddingContext, limits: TextLimits) {
    this.#context = context;
    this.#limits = limits;
  }

  async embed(
    texts: readonly string[],
    overflow: Overflow,
    request: BackingRequest,
    signal: AbortSignal,
  ): Promise<Embeddings> {
    // All texts are checked before the first is evaluated: a list that must fail costs nothing.
    const inputs = texts.map((text) => {
      checkText("text", text);
      if (text === "") throw new InvalidOptionError("text", "a text that is not empty", text);
      const tokens = this.#context.model.tokenize(text);
      if (tokens.length === 0) throw new InvalidOptionError("text", "a text with something in it for this model", text);
      return fit(this.#limits, tokens, overflow, (some) => this.#context.calculateInputLength(some));
    });
    const embeddings: (readonly number[])[] = [];
    for (const { tokens } of inputs) {
      const { vector } = await inTurn(this.#turns, request, signal, () => this.#context.getEmbeddingFor(tokens));
      embeddings.push(vector);
    }
    return { embeddings, ...countsOf(inputs) };
  }
}

/** Scores documents against a query. Calls take turns document by document. */
export class Ranker {
  readonly #context: LlamaRankingContext;
  readonly #limits: TextLimits;
  readonly #turns = new Turns();

  constructor(context: LlamaRankingContext, limits: TextLimits) {
    this.#context = context;
    this.#limits = limits;
  }

  async rank(
    query: string,
    documents: readonly string[],
    overflow: Overflow,
    request: BackingRequest,
    signal: AbortSignal,
  ): Promise<Ranking> {
    checkText("query", query);
    if (query === "") throw new InvalidOptionError("query", "a text that is not empty", query);
    const { model } = this.#context;
    const inputs = documents.map((document) => {
      checkText("documents", document);
      // what a ranking context makes of a text itself
      const tokens = model.tokenize(document, false, "trimLeadingSpace");
      return fit(this.#limits, tokens, overflow, (some) => this.#context.calculateInputLength(query, some));
    });
    const scores: number[] = [];
    for (const { tokens } of inputs) {
      scores.push(await inTurn(this.#turns, request, signal, () => this.#context.rank(query, tokens)));
    }
    return { scores, ...countsOf(inputs) };
  }
}

/** A text as it is evaluated. */
interface Input {
  readonly tokens: Token[];
  /** Tokens that the engine evaluates for it: those and its own. */
  readonly length: number;
  readonly truncated: boolean;
}

/** Cuts the tokens to what a context holds, if that is wanted. The engine needs one cell more than the text has tokens. */
function fit(
  { modelId, contextSize }: TextLimits,
  tokens: Token[],
  overflow: Overflow,
  lengthOf: (tokens: Token[]) => number,
): Input {
  const length = lengthOf(tokens);
  const tooMany = length - (contextSize - 1);
  if (tooMany <= 0) return { tokens, length, truncated: false };
  // what is left must be something: a query that fills the context by itself leaves no room for any document
  if (overflow === "refuse" || tooMany >= tokens.length)
    throw new ContextLengthExceededError(modelId, contextSize, length);
  const cut = tokens.slice(0, tokens.length - tooMany);
  return { tokens: cut, length: lengthOf(cut), truncated: true };
}

function countsOf(inputs: readonly Input[]): { truncated: boolean[]; promptTokens: number } {
  return {
    truncated: inputs.map(({ truncated }) => truncated),
    promptTokens: inputs.reduce((sum, { length }) => sum + length, 0),
  };
}

/** One text's evaluation, which cannot be interrupted: an abort is seen before it and after it. */
async function inTurn<Result>(
  turns: Turns,
  request: BackingRequest,
  signal: AbortSignal,
  evaluate: () => Promise<Result>,
): Promise<Result> {
  const end = await turns.take(signal, () => new RangeError("Turns without a limit are never full"));
  try {
    signal.throwIfAborted();
    request.phase = "prefill";
    const result = await evaluate();
    signal.throwIfAborted();
    return result;
  } finally {
    end();
  }
}

export interface TransientGenerationOptions {
  readonly modelId: string;
  readonly incarnation: number;
  readonly model: LlamaModel;
  readonly maxQueue: number;
  readonly queueLimit: QueueLimit | undefined;
  readonly steps: StepListener | undefined;
  readonly batchSize: number;
  readonly createContext: () => Promise<LlamaContext>;
  /** Told if a context could not be made: what the engine then leaves behind would block the model's disposal later. */
  readonly onBroken: (cause: unknown) => void;
}

/** Stateless generation: each call gets a context of its own, one call at a time. */
export class TransientGeneration {
  readonly #options: TransientGenerationOptions;
  readonly #turns: Turns;

  constructor(options: TransientGenerationOptions) {
    this.#options = options;
    this.#turns = new Turns(options.maxQueue, options.queueLimit);
  }

  get queued(): number {
    return this.#turns.waiting;
  }

  async submit(job: Job): Promise<Completion> {
    const { modelId, incarnation, model, batchSize, steps } = this.#options;
    job.request.phase = "queue";
    const end = await this.#turns.take(job.signal, (details) => new QueueFullError({ ...details, modelId }));
    try {
      const context = await this.#createContext();
      try {
        const server = new SlotServer({
          modelId,
          incarnation,
          maxQueue: 0,
          queueLimit: undefined,
          steps,
          detokenizer: model,
          groups: [{ slots: 1, batchSize, decodeWidths: [], newSequence: () => newSequence(context) }],
          onBroken: () => undefined,
        });
        return await server.submit(job);
      } finally {
        await context.dispose();
      }
    } finally {
      end();
    }
  }

  async #createContext(): Promise<LlamaContext> {
    try {
      return await this.#options.createContext();
    } catch (cause) {
      const { InsufficientMemoryError } = await import("node-llama-cpp");
      // Thrown before anything native was made.
      if (!(cause instanceof InsufficientMemoryError)) this.#options.onBroken(cause);
      throw cause;
    }
  }
}
