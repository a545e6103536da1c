/** What the benchmarks share: interleaved rounds, medians, and how a figure is told. */

export interface Figure {
  readonly figure: string;
  readonly target: string;
  readonly measured: string;
  /** Whether the target is met; `undefined`: stated only. */
  readonly met: boolean | undefined;
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1
    ? (sorted[middle] ?? NaN)
    : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2;
}

/** Shortened by `BENCH_QUICK=1`: to see that a benchmark works. Its figures say nothing then. */
export const isQuick = process.env["BENCH_QUICK"] === "1";

/** The value at this share of the sorted ones. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? NaN;
}

/**
 * Runs every case once per round, in turn, so that what disturbs the machine disturbs all alike; what each case resolves
 * to, in the order of the rounds. The first `warmUp` rounds are not kept.
 */
export async function alternate<Name extends string>(
  { rounds, warmUp = 0 }: { readonly rounds: number; readonly warmUp?: number },
  cases: Readonly<Record<Name, () => Promise<number>>>,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(cases) as Name[];
  const values = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Record<Name, number[]>;
  for (let round = 0; round < warmUp + rounds; round++) {
    // every second round in reverse, so that no case always comes after the same one
    for (const name of round % 2 === 0 ? names : names.toReversed()) {
      const value = await cases[name]();
      if (round >= warmUp) values[name].push(value);
    }
  }
  return values;
}

/** {@link alternate} for cases whose whole run is what is measured. Milliseconds per case. */
export function interleave<Name extends string>(
  rounds: number,
  cases: Readonly<Record<Name, () => unknown>>,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(cases) as Name[];
  const timed = Object.fromEntries(
    names.map((name) => [
      name,
      async () => {
        const began = performance.now();
        await cases[name]();
        return performance.now() - began;
      },
    ]),
  ) as Record<Name, () => Promise<number>>;
  return alternate({ rounds }, timed);
}

/** How much of the other one's value ours reaches: the median of the rounds' ratios, so that what drifts drifts out. */
export function ratio(ours: readonly number[], theirs: readonly number[]): number {
  return median(ours.map((value, round) => value / (theirs[round] ?? NaN)));
}

/** A comparison of tokens/s; without `least` it is stated only. */
export function speed(figure: string, ours: readonly number[], theirs: readonly number[], least?: number): Figure {
  const share = ratio(ours, theirs);
  return {
    figure,
    target: least === undefined ? "stated" : `≥ ${least} ×`,
    measured: `${share.toFixed(2)} × (${median(ours).toFixed(0)} against ${median(theirs).toFixed(0)} tokens/s)`,
    met: least === undefined ? undefined : share >= least,
  };
}

/** How many of each name, by name. */
export function count<T>(items: readonly T[], name: (item: T) => string): string {
  const counts: Record<string, number> = {};
  for (const item of items) counts[name(item)] = (counts[name(item)] ?? 0) + 1;
  return Object.entries(counts)
    .toSorted(([a], [b]) => a.localeCompare(b))
    .map(([key, value]) => `${key} ${value}`)
    .join(", ");
}

export function table(figures: readonly Figure[]): string {
  const rows = figures.map(
    ({ figure, target, measured, met }) =>
      `| ${figure} | ${target} | ${measured} | ${met === undefined ? "stated" : met ? "met" : "**missed**"} |`,
  );
  return ["| figure | target | measured | |", "|---|---|---|---|", ...rows].join("\n");
}
