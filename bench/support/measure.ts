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

/** Runs every case once per round, in turn, so that what disturbs the machine disturbs all alike. Milliseconds per case. */
export async function interleave<Name extends string>(
  rounds: number,
  cases: Readonly<Record<Name, () => unknown>>,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(cases) as Name[];
  const times = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Record<Name, number[]>;
  for (let round = 0; round < rounds; round++) {
    // every second round in reverse, so that no case always comes after the same one
    for (const name of round % 2 === 0 ? names : names.toReversed()) {
      const began = performance.now();
      await cases[name]();
      times[name].push(performance.now() - began);
    }
  }
  return times;
}

export function table(figures: readonly Figure[]): string {
  const rows = figures.map(
    ({ figure, target, measured, met }) =>
      `| ${figure} | ${target} | ${measured} | ${met === undefined ? "stated" : met ? "met" : "**missed**"} |`,
  );
  return ["| figure | target | measured | |", "|---|---|---|---|", ...rows].join("\n");
}
