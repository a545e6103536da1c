import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import { ModelSupervisor } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { temporaryChildrenMachine } from "../../src/supervisor/temporary-children.js";
import { lawfulWalks } from "../support/model-walk/walk.js";

/**
 * Random lives of models on the real tree with the fake backend and a simulated clock, 100 steps each: whatever is called
 * in whatever order, the laws of `laws.ts` hold after each step and after the end.
 *
 * `npm run walk` does 2,000. A failure prints its seed and path; `WALK_SEED=… WALK_PATH=… npm run walk` repeats it, and with
 * `WALK_SHRINK=1` looks for the fewest steps that still fail.
 */
const { WALK_RUNS = "60", WALK_SEED, WALK_PATH: path, WALK_SHRINK } = process.env;
const runs = Number(WALK_RUNS);
const seed = WALK_SEED === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(WALK_SEED);

describe("whatever is called in whatever order", () => {
  it(
    "memory is never overbooked, nothing is disposed in use, every call is answered, and everything is given back",
    { timeout: 30 * 60_000 },
    async () => {
      // xstate remarks on parts of the tree that were made to fail
      vi.spyOn(console, "warn").mockReturnValue();
      if (runs > 100) process.stdout.write(`${runs} walks, seed ${seed}\n`);
      const walks = lawfulWalks({ ModelSupervisor, Executor, temporaryChildrenMachine });

      const report = await fc.check(walks, {
        numRuns: runs,
        seed,
        endOnFailure: WALK_SHRINK === undefined,
        ...(path !== undefined && { path }),
      });

      const law = String(report.errorInstance);
      expect(report.failed ? `${law}\n${await fc.asyncDefaultReportMessage(report)}` : "lawful").toBe("lawful");
    },
  );
});
