/**
 * Continuous batching: all slots of one context advance together, a step at a time, for left to run freely the engine
 * batches badly and starves every other operation on the context. Between two steps the engine is quiet; only then are
 * requests let in and out and sequences cut. A slot keeps what its last request has evaluated, for the next one that
 * begins alike.
 */
import { QueueFullError } from "../../errors.js";
import type { Completion } from "../backend.js";
import { chooseSlot, planStep, reusableTokens, SlotQueue, type SlotCache } from "./scheduler.js";
import { SlotRun, type Job, type Sequence } from "./slot-run.js";
import { PieceCache, type Detokenizer } from "./text.js";

export interface SlotServerOptions {
  readonly modelId: string;
  readonly slots: number;
  readonly maxQueue: number;
  readonly batchSize: number;
  readonly detokenizer: Detokenizer;
  /** A fresh sequence of the context: one for each slot, and another where one has become unusable. */
  readonly newSequence: () => Sequence;
  /** Told once if the server itself can no longer go on. */
  readonly onBroken: (cause: unknown) => void;
}

/** A job and the promise that its caller holds. */
interface Ticket {
  readonly job: Job;
  readonly resolve: (completion: Completion) => void;
  readonly reject: (reason: unknown) => void;
}

interface Slot {
  readonly index: number;
  sequence: Sequence;
  /** The slot's owner; it runs from the next pause between two steps on. */
  ticket: Ticket | undefined;
  run: SlotRun | undefined;
  /** What the sequence holds, while no run has it; each run leaves a list of its own. */
  tokens: readonly number[];
  /** Whose tokens they are. */
  scope: string;
  /** How many jobs had been given a slot when the last run on this one ended. */
  usedAt: number;
}

/** Runs jobs on the slots of one context. */
export class SlotServer {
  readonly #options: SlotServerOptions;
  readonly #queue: SlotQueue<Ticket>;
  readonly #slots: Slot[];
  readonly #pieces: PieceCache;
  readonly #structuredPieces: PieceCache;
  #isTurning = false;
  #assigned = 0;
  #broken: { readonly cause: unknown } | undefined;

  constructor(options: SlotServerOptions) {
    this.#options = options;
    this.#queue = new SlotQueue(options.slots, options.maxQueue, ({ job }, free) => {
      const position = chooseSlot(
        free.map((index) => this.#cacheOf(this.#slot(index))),
        job,
      );
      return free[position] ?? free[0];
    });
    this.#slots = Array.from({ length: options.slots }, (_, index) => ({
      index,
      sequence: options.newSequence(),
      ticket: undefined,
      run: undefined,
      tokens: [],
      scope: "",
      usedAt: 0,
    }));
    this.#pieces = new PieceCache(options.detokenizer);
    this.#structuredPieces = new PieceCache(options.detokenizer, true);
  }

  /** Jobs that wait for a slot. */
  get queued(): number {
    return this.#queue.waiting;
  }

  /** Settles when the engine is quiet for this job. */
  submit(job: Job): Promise<Completion> {
    return new Promise((resolve, reject) => {
      if (this.#broken !== undefined) return reject(this.#broken.cause);
      if (job.signal.aborted) return reject(job.signal.reason);
      job.request.phase = "queue";
      const ticket: Ticket = { job, resolve, reject };
      const admission = this.#queue.admit(ticket);
      if (admission === "full")
        return reject(new QueueFullError(this.#options.modelId, this.#options.maxQueue, this.#queue.waiting));
      if (admission !== "queued") return this.#assign(admission.slot, ticket);
      // A job that waits does not have to wait for the next pause to leave.
      job.signal.addEventListener(
        "abort",
        () => {
          if (this.#queue.withdraw(ticket)) reject(job.signal.reason);
        },
        { once: true },
      );
    });
  }

  #slot(index: number): Slot {
    const slot = this.#slots[index];
    if (slot === undefined) throw new RangeError(`There is no slot ${index}`);
    return slot;
  }

  #cacheOf({ tokens, scope, usedAt, sequence }: Slot): SlotCache {
    return { tokens, scope, canCut: !sequence.needsCheckpoints, age: this.#assigned - usedAt };
  }

  #assign(index: number, ticket: Ticket): void {
    const slot = this.#slot(index);
    slot.ticket = ticket;
    this.#assigned++;
    if (!this.#isTurning) void this.#turn();
  }

  /** Steps until no slot has anything to do. */
  async #turn(): Promise<void> {
    this.#isTurning = true;
    try {
      // Asked anew after every pause: a job may have been given a slot while the pause ended.
      while (this.#slots.some(({ ticket }) => ticket !== undefined)) {
        await this.#pause();
        const running = this.#slots.flatMap(({ run }) => run ?? []);
        if (running.length > 0) await this.#step(running);
      }
    } catch (cause) {
      this.#break(cause);
    } finally {
      this.#isTurning = false;
    }
  }

  /** Between two steps: what has ended or was aborted leaves its slot, and what has been given a slot starts. */
  async #pause(): Promise<void> {
    for (;;) {
      const taken = this.#slots.filter(({ ticket }) => ticket !== undefined);
      const ending = taken.filter(hasEnded);
      const entering = taken.filter((slot) => slot.run === undefined && !hasEnded(slot));
      if (ending.length + entering.length === 0) return;
      await all([...ending.map((slot) => this.#leave(slot)), ...entering.map((slot) => this.#enter(slot))]);
      this.#release(ending);
    }
  }

  async #step(running: readonly SlotRun[]): Promise<void> {
    const plan = planStep(
      running.map(({ progress }) => progress),
      this.#options.batchSize,
    );
    await Promise.all(running.map((run, index) => run.advance(plan[index] ?? { type: "wait" })));
    await this.#retryAlone(running, plan);
    for (const run of running) run.deliver();
  }

  /**
   * When a native batch fails, the engine gives its error to every request in it. Each is then tried on its own, so that
   * only the one that is to blame fails.
   */
  async #retryAlone(running: readonly SlotRun[], plan: ReturnType<typeof planStep>): Promise<void> {
    const failed = running.filter(({ failure }) => failure !== undefined);
    const errors = failed.map(({ failure }) => failure?.error);
    const together = failed.filter((_, index) => errors.filter((error) => error === errors[index]).length > 1);
    for (const run of together) {
      const work = plan[running.indexOf(run)];
      if (work !== undefined && !run.job.signal.aborted) await run.advance(work);
    }
  }

  /** Cuts the sequence down to what the job can go on from; one that cannot be cut is replaced. */
  async #enter(slot: Slot): Promise<void> {
    if (slot.ticket === undefined) return;
    const { job } = slot.ticket;
    let cached = reusableTokens(this.#cacheOf(slot), job);
    try {
      await cut(slot.sequence, cached);
    } catch {
      cached = 0;
      await this.#replace(slot);
    }
    slot.tokens = [];
    const pieces = job.structure === undefined ? this.#pieces : this.#structuredPieces;
    slot.run = new SlotRun(job, slot.sequence, pieces, cached);
  }

  /** Ends the run; the sequence keeps what is in it, unless that has become doubtful. */
  async #leave(slot: Slot): Promise<void> {
    const { run } = slot;
    if (run === undefined) return;
    const isQuiet = await run.close().then(
      () => true,
      () => false,
    );
    if (!isQuiet || !run.isSound) return this.#replace(slot);
    slot.tokens = slot.sequence.contextTokens;
    slot.scope = run.job.scope;
    slot.usedAt = this.#assigned;
  }

  /** A sequence that cannot be trusted is given back for a fresh one; if that fails, the server is broken. */
  async #replace(slot: Slot): Promise<void> {
    slot.tokens = [];
    await slot.sequence.dispose();
    slot.sequence = this.#options.newSequence();
  }

  /** Hands the slots to the next jobs, and settles those that had them. */
  #release(slots: readonly Slot[]): void {
    const left = slots.map((slot) => ({ ticket: slot.ticket, run: slot.run }));
    for (const slot of slots) slot.ticket = slot.run = undefined;
    for (const { slot, job } of this.#queue.release(...slots.map(({ index }) => index))) this.#assign(slot, job);
    for (const { ticket, run } of left) {
      if (ticket === undefined) continue;
      if (ticket.job.signal.aborted) ticket.reject(ticket.job.signal.reason);
      else if (run?.completion !== undefined) ticket.resolve(run.completion);
      else ticket.reject(run?.failure?.error);
    }
  }

  #break(cause: unknown): void {
    this.#broken = { cause };
    const tickets = [...this.#slots.flatMap(({ ticket }) => ticket ?? []), ...this.#queue.drain()];
    for (const slot of this.#slots) {
      slot.ticket = undefined;
      slot.run = undefined;
    }
    // First the owner, who aborts what is in flight with a better reason than this one.
    this.#options.onBroken(cause);
    for (const { job, reject } of tickets) reject(job.signal.aborted ? job.signal.reason : cause);
  }
}

function hasEnded({ ticket, run }: Slot): boolean {
  return ticket?.job.signal.aborted === true || run?.completion !== undefined || run?.failure !== undefined;
}

/** Unlike `Promise.all` it waits for the rest when one fails: only then may the owner dispose what they work on. */
async function all(works: readonly Promise<void>[]): Promise<void> {
  for (const result of await Promise.allSettled(works)) if (result.status === "rejected") throw result.reason;
}

/** Leaves the first `length` tokens in the sequence. Nothing is shifted: what is kept keeps its place. */
async function cut(sequence: Sequence, length: number): Promise<void> {
  const end = sequence.nextTokenIndex;
  if (length === 0 && end > 0) await sequence.clearHistory();
  else if (length < end) await sequence.eraseContextTokenRanges([{ start: length, end }]);
  if (sequence.nextTokenIndex !== length) throw new Error("The sequence does not hold what it should");
}
