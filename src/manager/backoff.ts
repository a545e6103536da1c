/** When a model whose load failed may be tried again. Pure. */

/** The failures of loading one model since it was last loaded; forgotten with a success. */
export interface Failures {
  readonly count: number;
  /** Milliseconds since the epoch. */
  readonly retryAt: number;
}

/** With so many failures the circuit is open: it was not bad luck, and the next try will most likely fail too. */
const OPEN_FROM = 3;

const FIRST_MS = 1_000;
const OPEN_MS = 30_000;
const MAX_OPEN_MS = 15 * 60_000;
const OPEN_JITTER = 0.1;

/**
 * One failure more. The first two are waited out with exponential back-off and full jitter, at most 1 s and 2 s. From the
 * third on the circuit is open for 30 s, with each further failure for twice as long, at most 15 min, and up to a tenth
 * more by chance.
 *
 * Full jitter is from Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015
 * (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/): the delay is anything from 0 to the limit,
 * so that callers who failed together do not come back together.
 *
 * @param chance At least 0, below 1.
 */
export function afterFailure(before: Failures | undefined, now: number, chance: number): Failures {
  const count = (before?.count ?? 0) + 1;
  return { count, retryAt: now + delayMs(count, chance) };
}

/** Milliseconds until the next try; 0: it may be tried. */
export function waitMs(failures: Failures | undefined, now: number): number {
  if (failures === undefined) return 0;
  const wait = failures.retryAt - now;
  // longer than any wait after so many failures: the clock was set back, and says nothing about when it failed
  return wait > delayMs(failures.count, 1) ? 0 : Math.max(0, wait);
}

function delayMs(count: number, chance: number): number {
  if (count < OPEN_FROM) return Math.round(chance * FIRST_MS * 2 ** (count - 1));
  return Math.round(Math.min(MAX_OPEN_MS, OPEN_MS * 2 ** (count - OPEN_FROM)) * (1 + OPEN_JITTER * chance));
}
