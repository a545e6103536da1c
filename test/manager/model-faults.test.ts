import fc from "fast-check";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { copyOfSources } from "../support/model-walk/code-under-test.js";
import type { CodeUnderTest, Fault } from "../support/model-walk/code-under-test.js";
import { lawfulWalks } from "../support/model-walk/walk.js";

/**
 * The model finds faults: each is planted in a copy of the sources, which is walked as `model.test.ts` walks the sources
 * themselves.
 */
const RUNS = 100;
/** The one that hides best is found after 37 on average, 143 at most in 30 tries. */
const MOST_RUNS = 1_000;

/** What the walks found, if anything; as soon as they have. */
async function found(code: CodeUnderTest, numRuns = MOST_RUNS): Promise<string | undefined> {
  const { failed, errorInstance } = await fc.check(lawfulWalks(code), { numRuns, endOnFailure: true });
  return failed ? String(errorInstance) : undefined;
}

const SKIPPED_SECOND_READ: Fault = {
  file: "table/control-block.ts",
  from: `    if (Atomics.load(words, STATE) === LifeState.CLOSED) {
      this.#giveBack();
      return false;
    }
`,
  to: "",
};

/** It goes on to take requests, and other loads count on it too. */
const VICTIM_NOT_RESERVED: Fault = {
  file: "manager/decide.ts",
  from: `row: { ...row, status: "unloading", leaving },`,
  to: `row: reason === "eviction" ? row : { ...row, status: "unloading", leaving },`,
};

const MEMORY_FREED_BEFORE_DISPOSAL: Fault = {
  file: "manager/executor.ts",
  from: `      case "start-unload":
`,
  to: `      case "start-unload":
        this.#input.writer.unreserve(id, action.incarnation);
`,
};

beforeEach(() => {
  // xstate remarks on parts of the tree that were made to fail
  vi.spyOn(console, "warn").mockReturnValue();
});

describe("a walk through a copy of the sources", { timeout: 60_000 }, () => {
  it("finds nothing where nothing was planted", async () => {
    expect(await found(await copyOfSources(), RUNS)).toBeUndefined();
  });

  it("finds a lease that is taken without a second look at the state", async () => {
    expect(await found(await copyOfSources(SKIPPED_SECOND_READ))).toMatch(/leases/);
  });

  it("finds a victim that is not reserved when it is chosen", async () => {
    expect(await found(await copyOfSources(VICTIM_NOT_RESERVED))).toMatch(/lease|ready|requests|disposed/);
  });

  it("finds memory that counts as free before the disposal has ended", async () => {
    expect(await found(await copyOfSources(MEMORY_FREED_BEFORE_DISPOSAL))).toMatch(/in use, but only \d+ reserved/);
  });

  it("cannot plant a fault where the text is not that", async () => {
    const gone: Fault = { file: "table/control-block.ts", from: "no such text", to: "" };
    await expect(copyOfSources(gone)).rejects.toThrow("is 0 times in table/control-block.ts");
  });
});
