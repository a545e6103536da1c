/**
 * What needs no slot: embeddings and rankings on standing contexts, a text on each at a time, and generation on a context
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
import { TextPool } from "./text-pool.js";
import { Turns } from "./turns.js";

/** Names the model in errors and tells how long a text may be, and how many calls may wait. */
export interface TextLimits {
  readonly modelId: string;
  readonly contextSize: number;
  readonly maxQueue: number;
  readonly queueLimit?: QueueLimit | undefined;
}

/** Embeds texts. */
export class Embedder {
  readonly #pool: TextPool<LlamaEmbeddingContext>;
  readonly #limits: TextLimits;

  constructor(contexts: readonly LlamaEmbeddingContext[], limits: TextLimits) {
    this.#pool = new TextPool(contexts, limits);
    this.#limits = limits;
  }

  get queued(): number {
    return this.#pool.queued;
  }

  async embed(
    texts: readonly string[],
    overflow: Overflow,
    request: BackingRequest,
    signal: AbortSignal,
  ): Promise<Embeddings> {
    // All texts are checked before the first is evaluated: a list that must fail costs nothing.
    const prepare = (context: LlamaEmbeddingContext) =>
      texts.map((text) => {
        checkText("text", text);
        if (text === "") throw new InvalidOptionError("text", "a text that is not empty", text);
        const tokens = context.model.tokenize(text);
        if (tokens.length === 0)
          throw new InvalidOptionError("text", "a text with something in it for this model", text);
        return fit(this.#limits, tokens, overflow, (some) => context.calculateInputLength(some));
      });
    const { items, results } = await this.#pool.run(request, signal, prepare, (context, { tokens }) =>
      context.getEmbeddingFor(tokens),
    );
    return { embeddings: results.map(({ vector }) => vector), ...countsOf(items) };
  }
}

/** Scores documents against a query. */
export class Ranker {
  readonly #pool: TextPool<LlamaRankingContext>;
  readonly #limits: TextLimits;

  constructor(contexts: readonly LlamaRankingContext[], limits: TextLimits) {
    this.#pool = new TextPool(contexts, limits);
    this.#limits = limits;
  }

  get queued(): number {
    return this.#pool.queued;
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
    const prepare = (context: LlamaRankingContext) =>
      documents.map((document) => {
        checkText("documents", document);
        if (document === "") throw new InvalidOptionError("documents", "texts that are not empty", document);
        // what a ranking context makes of a text itself
        const tokens = context.model.tokenize(document, false, "trimLeadingSpace");
        return fit(this.#limits, tokens, overflow, (some) => context.calculateInputLength(query, some));
      });
    const { items, results } = await this.#pool.run(request, signal, prepare, (context, { tokens }) =>
      context.rank(query, tokens),
    );
    return { scores: results, ...countsOf(items) };
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

export interface TransientGenerationOptions {
  readonly modelId: string;
  readonly incarnation: number;
  readonly model: LlamaModel;
  readonly maxQueue: number;
  readonly queueLimit: QueueLimit | undefined;
  readonly steps: StepListener | undefined;
  readonly batchSize: number;
  readonly createContext: () => Promise<LlamaContext>;
}

/** Stateless generation: each call gets a context of its own, one call at a time. */
export class TransientGeneration {
  readonly #options: TransientGenerationOptions;
  readonly #turns: Turns;

  constructor(options: TransientGenerationOptions) {
    this.#options = options;
    this.#turns = new Turns({ maxQueue: options.maxQueue, shared: options.queueLimit });
  }

  get queued(): number {
    return this.#turns.waiting;
  }

  async submit(job: Job): Promise<Completion> {
    const { modelId, incarnation, model, batchSize, steps, createContext } = this.#options;
    job.request.phase = "queue";
    const full: Parameters<Turns["take"]>[1] = (details) => new QueueFullError({ ...details, modelId });
    const end = await this.#turns.take(job.signal, full, job.request);
    try {
      const context = await createContext();
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
}
