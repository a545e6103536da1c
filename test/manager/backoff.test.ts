import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { afterFailure, waitMs } from "../../src/manager/backoff.js";
import type { Failures } from "../../src/table/entry.js";

const NOW = 1_800_000_000_000;
const MINUTE = 60_000;
const LONGEST_MS = 16.5 * MINUTE;

/** As many failures, each at the first moment at which the model may be tried. */
function failures(count: number, chances: readonly number[], from = NOW): Failures {
  let now = from;
  let failed = afterFailure(undefined, now, chances[0] ?? 0);
  for (let failure = 1; failure < count; failure++) {
    now += waitMs(failed, now);
    failed = afterFailure(failed, now, chances[failure % chances.length] ?? 0);
  }
  return failed;
}

const chance = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });
const chances = fc.array(chance, { minLength: 1, maxLength: 8 });

describe("afterFailure", () => {
  it.each<{ count: number; least: number; middle: number }>([
    { count: 1, least: 0, middle: 500 },
    { count: 2, least: 0, middle: 1_000 },
    { count: 3, least: 30_000, middle: 31_500 },
    { count: 4, least: 1 * MINUTE, middle: 1.05 * MINUTE },
    { count: 5, least: 2 * MINUTE, middle: 2.1 * MINUTE },
    { count: 6, least: 4 * MINUTE, middle: 4.2 * MINUTE },
    { count: 7, least: 8 * MINUTE, middle: 8.4 * MINUTE },
    { count: 8, least: 15 * MINUTE, middle: 15.75 * MINUTE },
    { count: 9, least: 15 * MINUTE, middle: 15.75 * MINUTE },
    { count: 5_000, least: 15 * MINUTE, middle: 15.75 * MINUTE },
  ])("waits from $least ms, by chance $middle ms, after failure $count", ({ count, least, middle }) => {
    const before = count === 1 ? undefined : { count: count - 1, retryAt: NOW };

    expect(afterFailure(before, NOW, 0)).toEqual({ count, retryAt: NOW + least });
    expect(afterFailure(before, NOW, 0.5)).toEqual({ count, retryAt: NOW + middle });
  });

  it("keeps the circuit open ever longer, until 15 minutes and a tenth", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 2_000 }), chance, chance, (count, before, after) => {
        const shorter = afterFailure({ count, retryAt: NOW }, NOW, before).retryAt - NOW;
        const longer = afterFailure({ count: count + 1, retryAt: NOW }, NOW, after).retryAt - NOW;

        expect(shorter).toBeGreaterThanOrEqual(30_000);
        expect(longer).toBeLessThanOrEqual(LONGEST_MS);
        expect(count > 6 || longer > shorter).toBe(true);
      }),
    );
  });
});

describe("waitMs", () => {
  it.each<{ name: string; failed: Failures | undefined; now: number; wait: number }>([
    { name: "nothing without a failure", failed: undefined, now: NOW, wait: 0 },
    { name: "what is left", failed: { count: 3, retryAt: NOW + 30_000 }, now: NOW + 29_999, wait: 1 },
    { name: "nothing at the moment itself", failed: { count: 3, retryAt: NOW + 30_000 }, now: NOW + 30_000, wait: 0 },
    { name: "nothing later", failed: { count: 3, retryAt: NOW + 30_000 }, now: NOW + MINUTE, wait: 0 },
    { name: "the longest first delay", failed: { count: 1, retryAt: NOW + 1_000 }, now: NOW, wait: 1_000 },
    { name: "the longest open time", failed: { count: 9, retryAt: NOW + LONGEST_MS }, now: NOW, wait: LONGEST_MS },
    { name: "nothing if the clock was set back", failed: { count: 3, retryAt: NOW + 30_000 }, now: 0, wait: 0 },
  ])("is $name", ({ failed, now, wait }) => {
    expect(waitMs(failed, now)).toBe(wait);
  });

  it("lets no more than three tries through in 100 requests within 10 s to a model that always fails", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(chances, (chances) => {
        let failed: Failures | undefined;
        let tries = 0;
        for (let request = 0; request < 100; request++) {
          const now = NOW + request * 100;
          if (waitMs(failed, now) > 0) continue;
          failed = afterFailure(failed, now, chances[tries % chances.length] ?? 0);
          tries++;
        }

        // full jitter waits 3 s at most for the first two; then the circuit is open for the rest of the 10 s
        expect(tries).toBe(3);
      }),
    );
  });

  it("locks no model out for longer than its open time when the clock is set back", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 20 }), chances, fc.nat(1e9), (count, chances, backMs) => {
        const failed = failures(count, chances);
        const longest = afterFailure({ count: count - 1, retryAt: 0 }, 0, 1).retryAt;

        let waited = 0;
        let now = failed.retryAt - backMs;
        for (let wait = waitMs(failed, now); wait > 0; wait = waitMs(failed, now)) {
          // asked again in between, as requests do
          const step = Math.max(1, Math.ceil(wait / 2));
          waited += step;
          now += step;
        }

        expect(waited).toBeLessThanOrEqual(longest);
      }),
    );
  });
});
