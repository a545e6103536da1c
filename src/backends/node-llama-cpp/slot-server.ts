/** The slots of one model, in one context or several, and the queue before them. */
import { QueueFullError } from "../../errors.js";
import type { Completion, QueueLimit, StepListener } from "../backend.js";
import { chooseSlot } from "./scheduler/slot-choice.js";
import { SlotQueue } from "./scheduler/slot-queue.js";
import type { Ticket } from "./slot.js";
import { SlotGroup, type SlotGroupOptions, type SlotGroupOwner, type Step } from "./slot-group.js";
import type { Job } from "./slot-run.js";
import { PieceCache, type Detokenizer } from "./text.js";

export interface SlotServerOptions {
  readonly modelId: string;
  readonly incarnation: number;
  readonly maxQueue: number;
  readonly queueLimit: QueueLimit | undefined;
  readonly detokenizer: Detokenizer;
  /** One for each context, at least one. */
  readonly groups: readonly SlotGroupOptions[];
  readonly steps?: StepListener | undefined;
  /** Milliseconds. Default: those of the process. */
  readonly now?: (() => number) | undefined;
  /** Told once if the server itself can no longer go on. */
  readonly onBroken: (cause: unknown) => void;
}

/** Where a slot is: its group, and its place in there. */
interface Lane {
  readonly group: SlotGroup;
  readonly index: number;
}

/** Runs jobs on the slots of one model. */
export class SlotServer {
  readonly #options: SlotServerOptions;
  readonly #queue: SlotQueue<Ticket>;
  readonly #lanes: readonly Lane[];
  readonly #now: () => number;
  #assigned = 0;
  #broken: { readonly cause: unknown } | undefined;

  constructor(options: SlotServerOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    const pieces = new PieceCache(options.detokenizer);
    const structuredPieces = new PieceCache(options.detokenizer, true);
    const assigned = () => this.#assigned;
    let first = 0;
    this.#lanes = options.groups.flatMap((group) => {
      const start = first;
      first += group.slots;
      const owner: SlotGroupOwner = {
        pieces,
        structuredPieces,
        now: this.#now,
        get assigned() {
          return assigned();
        },
        onFree: (slots) => this.#release(slots.map((index) => start + index)),
        get isHeard() {
          return options.steps?.isHeard === true;
        },
        onStep: (step) => this.#tell(step),
        onBroken: (cause) => this.#break(cause),
      };
      const made = new SlotGroup(group, owner);
      return Array.from({ length: group.slots }, (_, index) => ({ group: made, index }));
    });
    this.#queue = new SlotQueue({
      slots: this.#lanes.length,
      maxQueue: options.maxQueue,
      shared: options.queueLimit,
      standing: ({ job: { request, scope } }) => ({ scope, priority: request.priority ?? "interactive" }),
      pick: ({ job }, free) => {
        const caches = free.map((slot) => {
          const { group, index } = this.#lane(slot);
          return group.cacheOf(index);
        });
        return free[chooseSlot(caches, job)] ?? free[0];
      },
    });
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
      const now = this.#now();
      const admission = this.#queue.admit(ticket, now);
      if (admission.type === "full") {
        const retryAfterMs = this.#queue.expectedWaitMs(now);
        return reject(new QueueFullError({ ...admission, modelId: this.#options.modelId, retryAfterMs }));
      }
      // first of all: who hears of the place may abort at once
      job.signal.addEventListener("abort", () => this.#abort(ticket), { once: true });
      if (admission.type === "slot") this.#assign(admission.slot, ticket);
      else job.request.queuePosition = admission.position;
    });
  }

  #lane(slot: number): Lane {
    const lane = this.#lanes[slot];
    if (lane === undefined) throw new RangeError(`There is no slot ${slot}`);
    return lane;
  }

  /** A job that waits does not have to wait for the next pause to leave; one that runs may be paused itself. */
  #abort(ticket: Ticket): void {
    if (this.#queue.withdraw(ticket)) return ticket.reject(ticket.job.signal.reason);
    for (const { group } of this.#lanes) group.wake();
  }

  #assign(slot: number, ticket: Ticket): void {
    const { group, index } = this.#lane(slot);
    this.#assigned++;
    group.assign(index, ticket);
  }

  #release(slots: readonly number[]): void {
    for (const { slot, job } of this.#queue.release(slots, this.#now())) this.#assign(slot, job);
  }

  #tell(step: Step): void {
    const { modelId, incarnation, steps } = this.#options;
    const batchTokens = step.decodeTokens + step.prefillTokens;
    steps?.tell({ modelId, incarnation, queued: this.queued, batchTokens, ...step });
  }

  #break(cause: unknown): void {
    if (this.#broken !== undefined) return;
    this.#broken = { cause };
    const waiting = this.#queue.drain();
    this.#options.onBroken(cause);
    for (const { job, reject } of waiting) reject(job.signal.aborted ? job.signal.reason : cause);
  }
}
