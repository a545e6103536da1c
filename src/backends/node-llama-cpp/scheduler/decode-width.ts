/** How many slots advance in one step. The widest step is often not the fastest: kernels work in blocks of rows. */

/** What a step takes in which so many slots advance. */
export interface StepTime {
  readonly width: number;
  readonly ms: number;
}

/**
 * A narrower step must be this much faster per token: with it, a slot has to wait for some steps, and a measurement of some
 * tenths of a second is wrong by a tenth often enough.
 */
const WORTHWHILE = 1.2;

/**
 * The best width for each number of slots that decode, from 1 to `slots`, at its index: the widest that is about as fast as
 * the fastest. Without measured steps: all of them.
 */
export function decodeWidths(slots: number, steps: readonly StepTime[]): number[] {
  const sorted = steps.toSorted((a, b) => a.width - b.width);
  return Array.from({ length: slots + 1 }, (_, active) => {
    const widths = [...sorted.map(({ width }) => width).filter((width) => width < active), active];
    const rates = widths.map((width) => rate(sorted, width));
    if (rates.at(-1) === undefined) return active;
    const enough = Math.max(...rates.map((each) => each ?? 0)) / WORTHWHILE;
    return widths.findLast((_width, index) => (rates[index] ?? 0) >= enough) ?? active;
  });
}

/** Tokens per millisecond, between two measured widths on the line that joins their times; outside of them not known. */
function rate(sorted: readonly StepTime[], width: number): number | undefined {
  const above = sorted.find((step) => step.width >= width);
  const below = sorted.findLast((step) => step.width <= width);
  if (above === undefined || below === undefined) return undefined;
  const share = above.width === below.width ? 0 : (width - below.width) / (above.width - below.width);
  return width / (below.ms + share * (above.ms - below.ms));
}
