/**
 * Who gets a slot, who waits, who is turned away, and what each slot does in the next step. Decisions only: no engine,
 * no clock, no promise. Priorities, adaptive slices and prefix reuse will be decided here as well.
 */

/** Prompt tokens that one step evaluates at most, over all slots: how long a decoding slot waits, and how fast an abort is seen. */
export const SLICE_TOKENS = 128;

/** What `admit` decided for a job. */
export type Admission = { readonly slot: number } | "queued" | "full";

/** Slots and the bounded queue before them, first in first out. */
export class SlotQueue<Job> {
  readonly #free: number[];
  readonly #waiting: Job[] = [];
  readonly #maxQueue: number;

  constructor(slots: number, maxQueue: number) {
    this.#free = Array.from({ length: slots }, (_, slot) => slot);
    this.#maxQueue = maxQueue;
  }

  /** Jobs that wait for a slot. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** A free slot is given at once; only a job that has to wait for one counts against the queue's limit. */
  admit(job: Job): Admission {
    const slot = this.#free.shift();
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

  /** Takes a slot back, clean; it goes to the job that has waited longest, which is returned. */
  release(slot: number): Job | undefined {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free.push(slot);
    return next;
  }

  /** Empties the queue and returns what was in it. */
  drain(): Job[] {
    return this.#waiting.splice(0);
  }
}

/** Where a slot's job is. */
export interface Progress {
  readonly promptTokens: number;
  /** Prompt tokens that have been evaluated; all of them once it decodes. */
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
