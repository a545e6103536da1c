import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import { ModelSupervisor } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { temporaryChildrenMachine } from "../../src/supervisor/temporary-children.js";
import { lawfulWalks } from "../support/model-walk/walk.js";

const RUNS = Number(process.env["WALK_RUNS"] ?? 60);
const SEED = Number(process.env["WALK_SEED"] ?? Math.floor(Math.random() * 2 ** 31));
const PATH = process.env["WALK_PATH"];

describe("whatever is called in whatever order", () => {
  it(
    "memory is never overbooked, nothing is disposed in use, every call is answered, and everything is given back",
    { timeout: 30 * 60_000 },
    async () => {
      // xstate remarks on parts of the tree that were made to fail
      vi.spyOn(console, "warn").mockReturnValue();
      if (RUNS > 100) process.stdout.write(`${RUNS} walks, seed ${SEED}\n`);
      await fc.assert(lawfulWalks({ ModelSupervisor, Executor, temporaryChildrenMachine }), {
        numRuns: RUNS,
        seed: SEED,
        endOnFailure: process.env["WALK_SHRINK"] === undefined,
        ...(PATH !== undefined && { path: PATH }),
      });
      expect(true).toBe(true);
    },
  );
});
