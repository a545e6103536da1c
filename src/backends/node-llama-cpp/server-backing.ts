/**
 * Continuous batching: all slots of one context advance together, a step at a time, for left to run freely the engine
 * batches badly and starves every other operation on the context. Between two steps the engine is quiet; only then are
 * requests let in and out and sequences cleared.
 */
import { QueueFullError } from "../../errors.js";
import type { Completion } from "../backend.js";
import { planStep, SlotQueue } from "./scheduler.js";
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
}

/** Runs jobs on the slots of one context. */
export class SlotServer {
  readonly #options: SlotServerOptions;
  readonly #queue: SlotQueue<Ticket>;
  readonly #slots: Slot[];
  readonly #pieces: PieceCache;
  readonly #structuredPieces: PieceCache;
  #isTurning = false;
  #broken: { readonly cause: unknown } | undefined;

  constructor(options: SlotServerOptions) {
    this.#options = options;
    this.#queue = new SlotQueue(options.slots, options.maxQueue);
    this.#slots = Array.from({ length: options.slots }, (_, index) => ({
      index,
      sequence: options.newSequence(),
      ticket: undefined,
      run: undefined,
    }));
    this.#pieces = new PieceCache(options.detokenizer);
    this.#structuredPieces = new PieceCache(options.detokenizer, true);
  }

  /** Jobs that wait for a slot. */
  get queued(): number {
    return this.#queue.waiting;
  }

  /** Settles when the engine is quiet for this job: its slot has been cleared. */
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

  #assign(index: number, ticket: Ticket): void {
    const slot = this.#slots[index];
    if (slot === undefined) throw new RangeError(`There is no slot ${index}`);
    slot.ticket = ticket;
    if (!this.#isTurning) void this.#turn();
  }

  /** Steps until no slot has anything to do. */
  async #turn(): Promise<void> {
    this.#isTurning = true;
    try {
      for (;;) {
        await this.#letOut();
        // From here to the step's first native call nothing is awaited: a job given a slot in between would be missed.
        const running = this.#letIn();
        if (running.length === 0) break;
        await this.#step(running);
      }
    } catch (cause) {
      this.#break(cause);
    } finally {
      this.#isTurning = false;
    }
  }

  /** Between two steps: what has ended or was aborted leaves its slot. */
  async #letOut(): Promise<void> {
    const ending = this.#slots.filter(({ ticket, run }) => {
      if (ticket === undefined) return false;
      return ticket.job.signal.aborted || run?.completion !== undefined || run?.failure !== undefined;
    });
    if (ending.length > 0) await Promise.all(ending.map((slot) => this.#release(slot)));
  }

  /** Between two steps: what has been given a slot starts. Returns all that run. */
  #letIn(): SlotRun[] {
    return this.#slots.flatMap((slot) => {
      if (slot.ticket === undefined) return [];
      const { job } = slot.ticket;
      slot.run ??= new SlotRun(job, slot.sequence, job.structure === undefined ? this.#pieces : this.#structuredPieces);
      return [slot.run];
    });
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

  /** Clears the slot, settles its job, and hands it to the next one. */
  async #release(slot: Slot): Promise<void> {
    const { ticket, run } = slot;
    if (ticket === undefined) return;
    if (run !== undefined) await this.#clear(slot, run);
    slot.run = undefined;
    slot.ticket = this.#queue.release(slot.index);
    if (ticket.job.signal.aborted) ticket.reject(ticket.job.signal.reason);
    else if (run?.completion !== undefined) ticket.resolve(run.completion);
    else ticket.reject(run?.failure?.error);
  }

  /** A sequence that cannot be cleared is given back for a fresh one; if that fails too, the server is broken. */
  async #clear(slot: Slot, run: SlotRun): Promise<void> {
    try {
      await run.close();
      await slot.sequence.clearHistory();
    } catch {
      await slot.sequence.dispose();
      slot.sequence = this.#options.newSequence();
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
