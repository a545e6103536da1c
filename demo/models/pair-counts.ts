/** Counts of pairs, and what they tell. */
import type { SparseMatrix } from "./factorize.js";

/** A pair that was counted; the totals are those of its members, and of all pairs. */
export interface CountedPair {
  readonly first: number;
  readonly second: number;
  readonly count: number;
  readonly firstTotal: number;
  readonly secondTotal: number;
  readonly total: number;
}

/** Counts pairs of small numbers. */
export class PairCounts {
  readonly #counts = new Map<number, Map<number, number>>();

  add(first: number, second: number): void {
    let row = this.#counts.get(first);
    if (row === undefined) this.#counts.set(first, (row = new Map()));
    row.set(second, (row.get(second) ?? 0) + 1);
  }

  pairs(): CountedPair[] {
    const secondTotals = new Map<number, number>();
    let total = 0;
    for (const row of this.#counts.values()) {
      for (const [second, count] of row) {
        secondTotals.set(second, (secondTotals.get(second) ?? 0) + count);
        total += count;
      }
    }
    return [...this.#counts].flatMap(([first, row]) => {
      const firstTotal = [...row.values()].reduce((sum, count) => sum + count, 0);
      return [...row].map(([second, count]) => ({
        first,
        second,
        count,
        firstTotal,
        secondTotal: secondTotals.get(second) ?? 0,
        total,
      }));
    });
  }

  /**
   * Positive pointwise mutual information: the logarithm of how much more often a pair occurs than chance would have it,
   * where that is more. Column: first of the pair, row: second. Each total is raised by `doubt`, since a pair of two rare
   * words proves little.
   */
  information(size: number, doubt = 0): SparseMatrix {
    const entries = this.pairs().flatMap(({ first, second, count, firstTotal, secondTotal, total }) => {
      const value = Math.log((count * total) / ((firstTotal + doubt) * (secondTotal + doubt)));
      return value > 0 ? [{ row: second, column: first, value }] : [];
    });
    return { rows: size, columns: size, entries };
  }
}

/** Different values, the most frequent first; equally frequent ones in the order of their first appearance. */
export function byFrequency(values: Iterable<string>): string[] {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].toSorted((a, b) => b[1] - a[1]).map(([value]) => value);
}
