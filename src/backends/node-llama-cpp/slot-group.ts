/**
 * Continuous batching: all slots of one context advance together, a step at a time, for left to run freely the engine
 * batches badly and starves every other operation on the context. Between two steps the engine is quiet; only then are
 * requests let in and out and sequences cut. A slot keeps what its last request has evaluated, for the next one that
 * begins alike.
 */
import { allSettled } from "./all-settled.js";
import { beginEvaluating } from "./engine-activity.js";
import { Pace } from "./scheduler/pace.js";
import type { SlotCache } from "./scheduler/slot-choice.js";
import { planStep, prefillTokens, WAIT, type Progress, type Work } from "./scheduler/step-plan.js";
import { Slot, type SlotsOwner, type Ticket } from "./slot.js";
import type { Sequence, SlotRun } from "./slot-run.js";

/** What a step did. */
export interface Step {
  /** Slots with a request. */
  readonly activeSlots: number;
  readonly decodeTokens: number;
  readonly prefillTokens: number;
  readonly ms: number;
}

export interface SlotGroupOptions {
  readonly slots: number;
  readonly batchSize: number;
  /** How many advance in one step, by how many decode. */
  readonly decodeWidths: readonly number[];
  /** A fresh sequence of the context: one for each slot, and another where one has become unusable. */
  readonly newSequence: () => Sequence;
}

/** What the group tells its owner, and shares with it. */
export interface SlotGroupOwner extends SlotsOwner {
  /** Milliseconds. */
  readonly now: () => number;
  /** The engine is quiet for these slots, and they have no request any more. */
  onFree(slots: readonly number[]): void;
  /** Whether steps are to be told. */
  readonly isHeard: boolean;
  onStep(step: Step): void;
  /** Told once if the group can no longer go on. Its tickets are rejected afterwards. */
  onBroken(cause: unknown): void;
}

/** One step: who is in it, where each was before, and what each does. */
interface PlannedStep {
  number: number;
  startedAt: number;
  readonly runs: readonly SlotRun[];
  readonly progress: readonly Progress[];
  readonly plan: readonly Work[];
  readonly isLight: boolean;
  /** All decode: so they will in the next step, if none has to wait and none enters or leaves. */
  readonly isSteady: boolean;
}

/** Runs jobs on the slots of one context. */
export class SlotGroup {
  readonly #options: SlotGroupOptions;
  readonly #owner: SlotGroupOwner;
  readonly #slots: Slot[];
  readonly #pace: Pace;
  #isTurning = false;
  #steps = 0;
  /**
   * The last step, if the next one is like it. Most steps are; and after the engine's work little of what decides is in the
   * processor's caches, so to decide nothing saves several times what it takes by itself.
   */
  #steady: PlannedStep | undefined;

  constructor(options: SlotGroupOptions, owner: SlotGroupOwner) {
    this.#options = options;
    this.#owner = owner;
    this.#pace = new Pace(options.batchSize);
    this.#slots = Array.from({ length: options.slots }, (_, index) => new Slot(index, options.newSequence));
  }

  /** Slots with a request. */
  get busy(): number {
    return this.#slots.filter(({ ticket }) => ticket !== undefined).length;
  }

  cacheOf(index: number): SlotCache {
    return this.#slot(index).cache(this.#owner.assigned, this.busy);
  }

  assign(index: number, ticket: Ticket): void {
    this.#slot(index).ticket = ticket;
    this.wake();
  }

  /** Something may have changed for a request that runs: it was aborted, or its reader has caught up. */
  wake(): void {
    if (!this.#isTurning) void this.#turn();
  }

  #slot(index: number): Slot {
    const slot = this.#slots[index];
    if (slot === undefined) throw new RangeError(`There is no slot ${index}`);
    return slot;
  }

  /** Steps until no slot has anything to do. What is done in each step is not spread over more functions that wait. */
  async #turn(): Promise<void> {
    this.#isTurning = true;
    const endEvaluating = beginEvaluating();
    try {
      // Asked anew after every pause: a job may have been given a slot while the pause ended.
      for (let next = nextOf(this.#slots); next !== "rest"; next = nextOf(this.#slots)) {
        if (next === "pause") {
          await this.#pause();
          continue;
        }
        const step = this.#plan();
        await Promise.all(step.runs.map((run, index) => run.advance(step.plan[index] ?? WAIT, step.number)));
        if (step.runs.some(hasFailed)) await this.#retryAlone(step);
        this.#finish(step);
      }
    } catch (cause) {
      this.#break(cause);
    } finally {
      this.#isTurning = false;
      endEvaluating();
    }
  }

  /** Between two steps: what has ended or was aborted leaves its slot, and what has been given a slot starts. */
  async #pause(): Promise<void> {
    this.#steady = undefined;
    const wake = () => this.wake();
    while (this.#slots.some((slot) => slot.needsPause)) {
      const ending = this.#slots.filter((slot) => slot.hasEnded);
      const entering = this.#slots.filter((slot) => slot.isNew && !slot.hasEnded);
      const { assigned } = this.#owner;
      await allSettled([
        ...ending.map((slot) => slot.leave(assigned)),
        ...entering.map((slot) => slot.enter(this.#owner, this.busy, wake)),
      ]);
      this.#release(ending);
    }
  }

  #plan(): PlannedStep {
    const steady = this.#steady;
    if (steady !== undefined && !steady.runs.some(isPaused)) {
      steady.number = ++this.#steps;
      steady.startedAt = this.#owner.now();
      return steady;
    }
    const step = this.#planAnew();
    this.#steady = step.isSteady ? step : undefined;
    return step;
  }

  #planAnew(): PlannedStep {
    const runs: SlotRun[] = [];
    const progress: Progress[] = [];
    let decoding = 0;
    for (const { run } of this.#slots) {
      if (run === undefined) continue;
      const now = run.progress;
      runs.push(run);
      progress.push(now);
      if (now.decodes && !now.isPaused) decoding++;
    }
    const { batchSize, decodeWidths } = this.#options;
    const { isLight, sliceTokens } = this.#pace.next(progress);
    const limits = { batchSize, sliceTokens, isLight, decodeWidth: decodeWidths[decoding] ?? decoding };
    const plan = planStep(progress, limits);
    const isSteady = plan.every(({ type }) => type === "decode");
    return { number: ++this.#steps, startedAt: this.#owner.now(), runs, progress, plan, isLight, isSteady };
  }

  /** The engine has done its part. */
  #finish({ runs, progress, plan, isLight, isSteady, startedAt }: PlannedStep): void {
    const ms = this.#owner.now() - startedAt;
    if (!isSteady) this.#pace.record(progress, plan, isLight, ms);
    for (const run of runs) run.deliver();
    if (!this.#owner.isHeard) return;
    this.#owner.onStep({
      activeSlots: runs.length,
      decodeTokens: plan.filter(({ type }) => type === "decode").length,
      prefillTokens: prefillTokens(progress, plan),
      ms,
    });
  }

  /**
   * When a native batch fails, the engine gives its error to every request in it. Each is then tried on its own, so that
   * only the one that is to blame fails.
   */
  async #retryAlone({ runs, plan, number }: PlannedStep): Promise<void> {
    const failed = runs.filter(hasFailed);
    const errors = failed.map(({ failure }) => failure?.error);
    const together = failed.filter((_, index) => errors.filter((error) => error === errors[index]).length > 1);
    for (const run of together) {
      const work = plan[runs.indexOf(run)];
      if (work !== undefined && !run.job.signal.aborted) await run.advance(work, number);
    }
  }

  /** First the next jobs get the slots, then those that had them are settled. */
  #release(slots: readonly Slot[]): void {
    const left = slots.map((slot) => ({ ticket: slot.ticket, run: slot.run }));
    for (const slot of slots) slot.ticket = slot.run = undefined;
    this.#owner.onFree(slots.map(({ index }) => index));
    for (const { ticket, run } of left) {
      if (ticket === undefined) continue;
      if (ticket.job.signal.aborted) ticket.reject(ticket.job.signal.reason);
      else if (run?.completion !== undefined) ticket.resolve(run.completion);
      else ticket.reject(run?.failure?.error);
    }
  }

  #break(cause: unknown): void {
    const tickets = this.#slots.flatMap(({ ticket }) => ticket ?? []);
    for (const slot of this.#slots) slot.ticket = slot.run = undefined;
    // First the owner, who aborts what is in flight with a better reason than this one.
    this.#owner.onBroken(cause);
    for (const { job, reject } of tickets) reject(job.signal.aborted ? job.signal.reason : cause);
  }
}

/** What is to be done now: let requests in or out, a step, or nothing. */
function nextOf(slots: readonly Slot[]): "pause" | "step" | "rest" {
  let next: "step" | "rest" = "rest";
  for (const slot of slots) {
    if (slot.needsPause) return "pause";
    if (slot.run?.isPaused === false) next = "step";
  }
  return next;
}

function isPaused(run: SlotRun): boolean {
  return run.isPaused;
}

function hasFailed({ failure }: SlotRun): boolean {
  return failure !== undefined;
}
