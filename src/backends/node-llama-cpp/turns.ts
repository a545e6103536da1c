/** One at a time, or a few, first come first served: for engine objects that can do one thing at once. */
import { SlotQueue } from "./scheduler.js";

interface Waiter {
  readonly go: (place: number) => void;
}

export class Turns {
  readonly #queue: SlotQueue<Waiter>;

  /** `maxWaiting`: how many may wait. `places`: how many have their turn at a time. */
  constructor(maxWaiting = Infinity, places = 1) {
    this.#queue = new SlotQueue(places, maxWaiting);
  }

  get waiting(): number {
    return this.#queue.waiting;
  }

  /**
   * Resolves when it is this caller's turn, with the function that ends it. Rejects with the signal's reason as soon as
   * that is aborted, also while waiting; with what `full` makes when too many wait already.
   */
  take(signal: AbortSignal, full: () => Error): Promise<() => void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const withdraw = () => {
        if (this.#queue.withdraw(waiter)) reject(signal.reason);
      };
      const waiter: Waiter = {
        go: (place) => {
          signal.removeEventListener("abort", withdraw);
          resolve(() => {
            for (const { job, slot } of this.#queue.release(place)) job.go(slot);
          });
        },
      };
      const admission = this.#queue.admit(waiter);
      if (admission === "full") return reject(full());
      if (admission === "queued") return signal.addEventListener("abort", withdraw, { once: true });
      waiter.go(admission.slot);
    });
  }
}
