/** Contexts that evaluate a text each at a time, and the calls that share them. */
import { setMaxListeners } from "node:events";
import { QueueFullError } from "../../errors.js";
import { beginEvaluating } from "./engine-activity.js";
import type { BackingRequest, QueueLimit } from "../backend.js";
import { HoldTimes } from "./scheduler/hold-times.js";
import { Turns } from "./turns.js";

export interface TextPoolLimits {
  readonly modelId: string;
  /** Calls that may be there beyond one for each context. */
  readonly maxQueue: number;
  readonly queueLimit?: QueueLimit | undefined;
}

/** How long a text takes, before one has ended. */
const FIRST_GUESS_MS = 50;

/** Calls take turns text by text, so that a long list does not keep a single text waiting. */
export class TextPool<Context> {
  readonly #contexts: readonly Context[];
  readonly #free: Context[];
  readonly #turns: Turns;
  readonly #limits: TextPoolLimits;
  readonly #holds = new HoldTimes(FIRST_GUESS_MS);
  /** Of all calls, not evaluated yet. */
  #textsLeft = 0;
  #calls = 0;

  constructor(contexts: readonly Context[], limits: TextPoolLimits) {
    this.#contexts = contexts;
    this.#free = [...contexts];
    this.#turns = new Turns({ places: contexts.length });
    this.#limits = limits;
  }

  /** Calls beyond one for each context. All of them advance, but they are more than can at a time. */
  get queued(): number {
    return Math.max(0, this.#calls - this.#contexts.length);
  }

  /**
   * One call: what `prepare` makes of its texts is evaluated on as many contexts as are free, and comes back in order.
   * When it rejects, because of one text or of the signal, none of its texts is being evaluated any more.
   * @throws QueueFullError
   */
  async run<Item, Result>(
    request: BackingRequest,
    signal: AbortSignal,
    prepare: (context: Context) => readonly Item[],
    evaluate: (context: Context, item: Item) => Promise<Result>,
  ): Promise<{ items: readonly Item[]; results: Result[] }> {
    const [first] = this.#contexts;
    if (first === undefined) throw new TypeError("There is no context to evaluate texts in");
    this.#enter();
    const endEvaluating = beginEvaluating();
    request.phase = "queue";
    if (this.queued > 0) request.queuePosition = this.queued;
    let left = 0;
    try {
      const items = prepare(first);
      left = items.length;
      this.#textsLeft += left;
      const results = await this.#evaluateAll(request, signal, items, async (context, item) => {
        const startedAt = performance.now();
        const result = await evaluate(context, item);
        this.#holds.record(performance.now() - startedAt);
        this.#textsLeft--;
        left--;
        return result;
      });
      return { items, results };
    } finally {
      endEvaluating();
      this.#textsLeft -= left;
      this.#leave();
    }
  }

  #enter(): void {
    const { modelId, maxQueue, queueLimit } = this.#limits;
    const contexts = this.#contexts.length;
    // when all that is here has been evaluated: before, calls end one by one, and nobody knows which
    const retryAfterMs = this.#holds.expectedWaitMs(this.#textsLeft, contexts);
    if (this.#calls >= contexts + maxQueue)
      throw new QueueFullError({ modelId, of: "model", limit: maxQueue, queued: this.queued, retryAfterMs });
    if (this.#calls >= contexts && queueLimit?.enter() === false)
      throw new QueueFullError({
        modelId,
        of: "all",
        limit: queueLimit.limit,
        queued: queueLimit.waiting,
        retryAfterMs,
      });
    this.#calls++;
  }

  #leave(): void {
    if (this.queued > 0) this.#limits.queueLimit?.leave();
    this.#calls--;
  }

  async #evaluateAll<Item, Result>(
    request: BackingRequest,
    signal: AbortSignal,
    items: readonly Item[],
    evaluate: (context: Context, item: Item) => Promise<Result>,
  ): Promise<Result[]> {
    const failure = new AbortController();
    const ended = AbortSignal.any([signal, failure.signal]);
    setMaxListeners(0, ended); // each context's turn listens; Node would warn of a leak from the eleventh on
    const results: Result[] = [];
    // one iterator for all: each text is taken by whoever is free
    const left = items.entries();
    const work = async () => {
      for (const [index, item] of left) {
        results[index] = await this.#inTurn(ended, (context) => {
          request.phase = "prefill";
          return evaluate(context, item);
        });
      }
    };
    const workers = Array.from({ length: Math.min(items.length, this.#contexts.length) }, () =>
      work().catch((error: unknown) => failure.abort(error)),
    );
    await Promise.all(workers);
    ended.throwIfAborted();
    return results;
  }

  /** One text's evaluation, which cannot be interrupted: an abort is seen before it and after it. */
  async #inTurn<Result>(signal: AbortSignal, evaluate: (context: Context) => Promise<Result>): Promise<Result> {
    const end = await this.#turns.take(signal);
    const context = this.#free.pop();
    try {
      signal.throwIfAborted();
      if (context === undefined) throw new TypeError("There are more turns than contexts");
      return await evaluate(context);
    } finally {
      if (context !== undefined) this.#free.push(context);
      end();
    }
  }
}
