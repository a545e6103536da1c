import type { SecondsHistogram } from "../../metrics/snapshot.js";

/** Counts durations by their length, in fixed memory. */
export class Histogram {
  /** Seconds, ascending. */
  readonly #bounds: readonly number[];
  /** One for each bound, and one for what is longer than the last. */
  readonly #counts: number[];
  /** Milliseconds, since sums of whole ones are exact. */
  #sumMs = 0;

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds;
    this.#counts = Array.from({ length: bounds.length + 1 }, () => 0);
  }

  /** What was not measured, or is no number, does not count; time that ran backwards counts as none. */
  observe(ms: number | undefined): void {
    if (ms === undefined || !Number.isFinite(ms)) return;
    const passedMs = Math.max(0, ms);
    let index = 0;
    while (passedMs > (this.#bounds[index] ?? Infinity) * 1000) index += 1;
    this.#counts[index] = (this.#counts[index] ?? 0) + 1;
    this.#sumMs += passedMs;
  }

  snapshot(): SecondsHistogram {
    let count = 0;
    const buckets = this.#bounds.map((upTo, index) => ({ upTo, count: (count += this.#counts[index] ?? 0) }));
    return { buckets, sum: this.#sumMs / 1000, count: count + (this.#counts[this.#bounds.length] ?? 0) };
  }
}
