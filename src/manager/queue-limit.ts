import type { QueueLimit } from "../backends/backend.js";

/** Counts the requests that wait for a slot, over all models. */
export class TotalQueue implements QueueLimit {
  readonly limit: number;
  #waiting = 0;

  constructor(limit: number) {
    this.limit = limit;
  }

  get waiting(): number {
    return this.#waiting;
  }

  enter(): boolean {
    if (this.#waiting >= this.limit) return false;
    this.#waiting++;
    return true;
  }

  leave(): void {
    this.#waiting--;
  }
}
