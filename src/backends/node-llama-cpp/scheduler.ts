/**
 * Who gets a slot, who waits, who is turned away, and what each slot does in the next step. Decisions only: no engine,
 * no clock, no promise. Priorities and adaptive slices will be decided here as well.
 */

/** Prompt tokens that one step evaluates at most, over all slots: how long a decoding slot waits, and how fast an abort is seen. */
export const SLICE_TOKENS = 128;

/** What `admit` decided for a job. */
export type Admission = { readonly slot: number } | "queued" | "full";

/** Picks one of the free slots, of which there is at least one, for a job. */
export type PickSlot<Job> = (job: Job, free: readonly [number, ...number[]]) => number;

/** A job that waited, and the slot that it has been given. */
export interface Assignment<Job> {
  readonly slot: number;
  readonly job: Job;
}

/** Slots and the bounded queue before them, first in first out. */
export class SlotQueue<Job> {
  readonly #free: number[];
  readonly #waiting: Job[] = [];
  readonly #maxQueue: number;
  readonly #pick: PickSlot<Job>;

  constructor(slots: number, maxQueue: number, pick: PickSlot<Job> = (_job, [first]) => first) {
    this.#free = Array.from({ length: slots }, (_, slot) => slot);
    this.#maxQueue = maxQueue;
    this.#pick = pick;
  }

  /** Jobs that wait for a slot. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** A free slot is given at once; only a job that has to wait for one counts against the queue's limit. */
  admit(job: Job): Admission {
    const slot = this.#take(job);
    if (slot !== undefined) return { slot };
    if (this.#waiting.length >= this.#maxQueue) return "full";
    this.#waiting.push(job);
    return "queued";
  }

  /** Takes a job out of the queue. False if it is not there (any more). */
  withdraw(job: Job): boolean {
    const index = this.#waiting.indexOf(job);
    if (index < 0) return false;
    this.#waiting.splice(index, 1);
    return true;
  }

  /**
   * Takes slots back. The jobs that have waited longest get them, each the one that suits it best, which is why slots
   * that become free together are to be released together.
   */
  release(...slots: readonly number[]): Assignment<Job>[] {
    this.#free.push(...slots);
    return this.#waiting.splice(0, this.#free.length).flatMap((job) => {
      const slot = this.#take(job);
      return slot === undefined ? [] : [{ slot, job }];
    });
  }

  #take(job: Job): number | undefined {
    const [first, ...rest] = this.#free;
    if (first === undefined) return undefined;
    const slot = this.#pick(job, [first, ...rest]);
    this.#free.splice(this.#free.indexOf(slot), 1);
    return slot;
  }

  /** Empties the queue and returns what was in it. */
  drain(): Job[] {
    return this.#waiting.splice(0);
  }
}

/** Tokens and whose they are; tokens of different scopes are never compared. */
export interface ScopedTokens {
  readonly tokens: readonly number[];
  readonly scope: string;
}

/** What a free slot still has in its KV cache. */
export interface SlotCache extends ScopedTokens {
  /** False where the model's state cannot be cut (recurrent, sliding window): then it is kept whole or not at all. */
  readonly canCut: boolean;
  /** Jobs that have been given a slot since this one was used last. */
  readonly age: number;
}

/** How much of a cache a prompt can go on from. Its last token is evaluated in any case, for what comes next is read there. */
export function reusableTokens(cache: SlotCache, prompt: ScopedTokens): number {
  if (cache.scope !== prompt.scope) return 0;
  const most = Math.min(cache.tokens.length, prompt.tokens.length - 1);
  let common = 0;
  while (common < most && cache.tokens[common] === prompt.tokens[common]) common++;
  return cache.canCut || common === cache.tokens.length ? common : 0;
}

/**
 * What a token that would be lost counts for, against one that is saved for certain: half of the conversations come
 * back. And however long nobody came, a match of under a ninth of a cache does not destroy the rest.
 */
const WORTH = { fresh: 1 / 2, least: 1 / 8 };

/**
 * The slot that a prompt is to have, by its position in the list. Each is judged by the tokens that need not be
 * evaluated, less those that would be lost to a conversation that may come back. The latter count for less the longer
 * nobody came: else a conversation that was given up would keep its slot from the living ones for ever.
 */
export function chooseSlot(caches: readonly SlotCache[], prompt: ScopedTokens): number {
  const judged = caches.map((cache, index) => {
    const reused = reusableTokens(cache, prompt);
    const lost = cache.tokens.length - reused;
    const worth = Math.max(WORTH.least, (WORTH.fresh * caches.length) / (caches.length + cache.age));
    return { index, age: cache.age, gain: reused - lost * worth, lost };
  });
  // Among equals the one that loses least, then the one that nobody has wanted for longest.
  judged.sort((a, b) => b.gain - a.gain || a.lost - b.lost || b.age - a.age || a.index - b.index);
  return judged[0]?.index ?? 0;
}

/** Where a slot's job is. */
export interface Progress {
  readonly promptTokens: number;
  /** Prompt tokens that are in the cache; all of them once it decodes. */
  readonly evaluatedTokens: number;
  readonly decodes: boolean;
}

/**
 * `prefill`: evaluate `tokens` more of the prompt. `start`: evaluate the rest of it and sample the first token.
 * `decode`: sample the next one. `wait`: nothing in this step.
 */
export type Work =
  | { readonly type: "prefill"; readonly tokens: number }
  | { readonly type: "start" }
  | { readonly type: "decode" }
  | { readonly type: "wait" };

/**
 * The next step of every slot, in the order given. Decoding slots always advance. The prefilling ones share one slice,
 * equally and the short ones first, so that a step costs the same however many prefill and a short prompt never waits
 * for a long one. A step fits into one native batch.
 */
export function planStep(slots: readonly Progress[], batchSize: number): Work[] {
  const prefilling = slots.flatMap((slot, index) =>
    slot.decodes ? [] : [{ index, left: slot.promptTokens - slot.evaluatedTokens }],
  );
  prefilling.sort((a, b) => a.left - b.left);
  const decoding = slots.length - prefilling.length;
  let budget = Math.min(Math.max(SLICE_TOKENS, prefilling.length), Math.max(1, batchSize - decoding));

  const plan: Work[] = slots.map((slot) => ({ type: slot.decodes ? "decode" : "wait" }));
  for (const [rank, { index, left }] of prefilling.entries()) {
    const tokens = Math.min(left, Math.ceil(budget / (prefilling.length - rank)));
    budget -= tokens;
    if (tokens > 0) plan[index] = tokens === left ? { type: "start" } : { type: "prefill", tokens };
  }
  return plan;
}
