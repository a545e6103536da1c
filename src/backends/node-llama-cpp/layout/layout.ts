/**
 * How the slots of a model are spread over contexts, how many threads each context has, and how many slots advance in one
 * step. What is best differs by file, library and machine by more than a factor of two either way, so it is measured where
 * there is a choice. Decisions only; `calibration.ts` measures.
 */
import type { LayoutMeasurement } from "../../../model.js";
import type { StepTime } from "../scheduler/decode-width.js";

/** Contexts, and CPU threads of each. */
export interface Spread {
  readonly contexts: number;
  readonly threads: number;
}

export function isSameSpread(a: Spread, b: Spread): boolean {
  return a.contexts === b.contexts && a.threads === b.threads;
}

/** What there is to spread. */
export interface SpreadInput {
  readonly slots: number;
  /** CPU threads of the model. */
  readonly threads: number;
  /** One context with all threads: the caller has set them, or layers are on a GPU, and then they are not what limits it. */
  readonly isFixed: boolean;
  /** Of the model's files. */
  readonly sizeBytes: number;
}

/** Beyond this many, compute buffers cost more than they gain. */
const MOST_CONTEXTS = 4;
/** Kernels work in blocks of rows, and some of their borders lie here (measured). */
const WIDTHS = [128, 64, 32, 16, 8, 4, 192, 96, 48, 24, 12, 6, 14, 7];
/** A smaller model is faster with one thread than with several, which wait for each other more than they work (measured). */
const WORTH_THREADS_BYTES = 2 ** 28;

/** The spreads to choose from; the first is what is taken where none is measured. */
export function candidateSpreads(input: SpreadInput): [Spread, ...Spread[]] {
  const { slots, threads, isFixed, sizeBytes } = input;
  if (isFixed) return [{ contexts: 1, threads }];
  const fallback: Spread = { contexts: 1, threads: sizeBytes < WORTH_THREADS_BYTES ? 1 : threads };
  const spreads = [1, 2, MOST_CONTEXTS]
    .filter((contexts) => contexts === 1 || contexts <= Math.min(threads, slots))
    .flatMap((contexts): Spread[] => {
      const share = Math.floor(threads / contexts);
      return share === 1 ? [{ contexts, threads: 1 }] : [1, share].map((each) => ({ contexts, threads: each }));
    });
  const others = spreads.filter((spread) => !isSameSpread(spread, fallback));
  return [fallback, ...others];
}

/** The widths to choose from on a context of so many slots, the most telling first; up to 4 slots all always advance. */
export function candidateWidths(slots: number): number[] {
  return slots <= 4 ? [slots] : [slots, ...WIDTHS.filter((width) => width < slots)];
}

/** Slots of each context. */
export function slotsOf(slots: number, contexts: number): number[] {
  return Array.from({ length: contexts }, (_, index) => Math.ceil((slots - index) / contexts));
}

/** What one spread does. */
export interface SpreadRates {
  readonly spread: Spread;
  /** Tokens per second of one stream, and of all slots together. */
  readonly single: number;
  readonly full: number;
}

/** The steps for which one spread is measured where they are slow, and the prompts before them, in steps of all slots. */
const STEPS_OF_ONE = 6;

/** How long a spread takes to measure at worst, by what the first one took: as if all threads had shared the work evenly. */
export function measuringMs({ contexts, threads }: Spread, { spread, full }: SpreadRates, slots: number): number {
  const fewer = (spread.contexts * spread.threads) / (contexts * threads);
  return STEPS_OF_ONE * Math.max(1, fewer) * ((1_000 * slots) / full);
}

/** Another spread than the first must be this much better: the first is what people expect, and every measurement has noise. */
const WORTHWHILE = 1.05;

/** The best spread: for one stream and for many, since a model serves both. */
export function chooseSpread([first, ...others]: readonly [SpreadRates, ...SpreadRates[]]): SpreadRates {
  const score = ({ single, full }: SpreadRates) => Math.sqrt(single * full);
  const best = others.reduce((a, b) => (score(b) > score(a) ? b : a), first);
  return score(best) > score(first) * WORTHWHILE ? best : first;
}

/** What was found out about one model on one machine. Plain JSON: it is kept in a file. */
export interface Calibration {
  readonly spread: Spread;
  /** Steps of one context. */
  readonly steps: readonly StepTime[];
  readonly measurements: readonly LayoutMeasurement[];
}
