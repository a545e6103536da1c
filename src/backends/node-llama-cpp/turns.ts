/** One at a time, or a few, for engine objects that can do one thing at once; those who wait have the order of slots. */
import type { QueueFullDetails } from "../../errors.js";
import type { BackingRequest, QueueLimit } from "../backend.js";
import { SlotQueue } from "./scheduler/slot-queue.js";

/** Which limit is reached. */
type QueueFullness = Omit<QueueFullDetails, "modelId">;

interface TurnsOptions {
  readonly places?: number;
  readonly maxQueue?: number;
  readonly shared?: QueueLimit | undefined;
}

/** Who asks; without it, all are alike. It is told its place where it has to wait. */
type Asker = Pick<BackingRequest, "priority" | "scope" | "queuePosition">;

interface Waiter {
  readonly go: (place: number) => void;
  readonly asker: Asker;
}

/** For turns without a limit. */
const neverFull = (_details: QueueFullness): Error => new RangeError("Turns without a limit are never full");

export class Turns {
  readonly #queue: SlotQueue<Waiter>;

  /**
   * `maxQueue`: how many may wait; `shared`: what they share with the queues of other models. `places`: how many have their
   * turn at a time.
   */
  constructor({ places = 1, maxQueue = Infinity, shared }: TurnsOptions = {}) {
    this.#queue = new SlotQueue({
      slots: places,
      maxQueue,
      shared,
      standing: ({ asker: { priority = "interactive", scope = "" } }) => ({ priority, scope }),
    });
  }

  get waiting(): number {
    return this.#queue.waiting;
  }

  /**
   * Resolves when it is this caller's turn, with the function that ends it. Rejects with the signal's reason as soon as
   * that is aborted, also while waiting; with what `full` makes when too many wait already.
   */
  take(signal: AbortSignal, full = neverFull, asker: Asker = {}): Promise<() => void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const withdraw = () => {
        if (this.#queue.withdraw(waiter)) reject(signal.reason);
      };
      const waiter: Waiter = {
        asker,
        go: (place) => {
          signal.removeEventListener("abort", withdraw);
          resolve(() => {
            for (const { job, slot } of this.#queue.release([place], performance.now())) job.go(slot);
          });
        },
      };
      const now = performance.now();
      const admission = this.#queue.admit(waiter, now);
      if (admission.type === "full")
        return reject(full({ ...admission, retryAfterMs: this.#queue.expectedWaitMs(now) }));
      if (admission.type === "slot") return waiter.go(admission.slot);
      // first of all: who hears of the place may abort at once
      signal.addEventListener("abort", withdraw, { once: true });
      asker.queuePosition = admission.position;
    });
  }
}
