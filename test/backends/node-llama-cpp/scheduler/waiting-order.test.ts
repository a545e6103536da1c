import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  compareWaiting,
  FairTurns,
  type Waiting,
} from "../../../../src/backends/node-llama-cpp/scheduler/waiting-order.js";

const waiting = (priority: Waiting["priority"], turn = 1, sinceMs = 0): Waiting => ({ priority, turn, sinceMs });

describe("compareWaiting", () => {
  it.each<{ name: string; first: Waiting; second: Waiting; atMs: number }>([
    { name: "the more urgent", first: waiting("interactive", 9), second: waiting("system", 1), atMs: 0 },
    { name: "the system before the background", first: waiting("system", 9), second: waiting("background"), atMs: 0 },
    { name: "of equals, the earlier turn", first: waiting("system", 1), second: waiting("system", 2), atMs: 0 },
    {
      name: "a background request of 10 s before an interactive one with a later turn",
      first: waiting("background", 1, 0),
      second: waiting("interactive", 2, 10_000),
      atMs: 10_000,
    },
    {
      name: "but not yet at 9 s",
      first: waiting("interactive", 2, 9_000),
      second: waiting("background", 1, 0),
      atMs: 9_000,
    },
  ])("puts first $name", ({ first, second, atMs }) => {
    expect(compareWaiting(first, second, atMs)).toBeLessThan(0);
    expect(compareWaiting(second, first, atMs)).toBeGreaterThan(0);
  });
});

describe("FairTurns", () => {
  it("lets no request wait for ever, whoever keeps coming", () => {
    expect.assertions(200);
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 30 }), fc.array(fc.integer({ min: 0, max: 400 })), (ahead, scopes) => {
        const turns = new FairTurns();
        const waitingTurns: number[] = [];
        for (let count = 0; count < ahead; count++) waitingTurns.push(turns.take("greedy"));
        const mine = turns.take("greedy");
        // in each round a newcomer arrives, mostly of a scope that was never seen, and the lowest turn is let in
        const rounds = 2 * (ahead + 2) ** 2;
        for (let round = 0; round < rounds; round++) {
          waitingTurns.push(turns.take(`${scopes[round % (scopes.length + 1)] ?? `new ${round}`}`));
          const next = Math.min(mine, ...waitingTurns);
          if (next === mine) {
            expect(round).toBeLessThan(rounds);
            return;
          }
          waitingTurns.splice(waitingTurns.indexOf(next), 1);
          turns.letIn(next);
        }
        throw new Error(`not let in after ${rounds} others`);
      }),
      { numRuns: 200 },
    );
  });

  it("does not keep scopes for ever that have no turn to come", () => {
    const turns = new FairTurns();
    for (let scope = 0; scope < 10_000; scope++) turns.letIn(turns.take(String(scope)));

    // a scope that was forgotten starts where all others do
    expect(turns.take("0")).toBe(turns.take("new"));
  });
});
