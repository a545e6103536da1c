/** How long a place is held, by how long the last ones were: what those who are turned away are told to wait for. */

/** How much the last one counts in the mean. */
const NEWEST_COUNTS = 0.2;

export class HoldTimes {
  readonly #firstGuessMs: number;
  #meanMs: number | undefined;

  /** `firstGuessMs`: what is said before any has ended. */
  constructor(firstGuessMs: number) {
    this.#firstGuessMs = firstGuessMs;
  }

  record(ms: number): void {
    this.#meanMs = this.#meanMs === undefined ? ms : this.#meanMs + NEWEST_COUNTS * (ms - this.#meanMs);
  }

  /**
   * How long one more would wait for one of the places. `longestMs`: how long one has been held that has not ended, which
   * counts as long as none has.
   */
  expectedWaitMs(waiting: number, places: number, longestMs = 0): number {
    const holdMs = this.#meanMs ?? Math.max(this.#firstGuessMs, longestMs);
    return Math.max(1, Math.ceil((holdMs * (waiting + 1)) / places));
  }
}
