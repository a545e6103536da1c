import { describe, expect, it } from "vitest";
import { inTurn, median, timesAsLong } from "../../../../src/backends/node-llama-cpp/layout/in-turn.js";

describe("inTurn", () => {
  it("gives every candidate its turn in each round", async () => {
    const order: string[] = [];
    const turn = (name: string, ms: number) => () => Promise.resolve((order.push(name), ms));

    expect(await inTurn([turn("a", 1), turn("b", 2)], 2, Infinity)).toEqual([
      [1, 2],
      [1, 2],
    ]);
    expect(order).toEqual(["a", "b", "a", "b"]);
  });

  it("times two candidates once where there is no time at all", async () => {
    const turns = [1, 2, 3].map((ms) => () => Promise.resolve(ms));

    expect(await inTurn(turns, 5, -Infinity)).toEqual([[1, 2]]);
  });
});

describe("timesAsLong", () => {
  it("compares within each round, so that a machine that gets slower changes nothing", () => {
    expect(
      timesAsLong(
        [
          [10, 5],
          [20, 10],
          [80, 40],
        ],
        0,
        1,
      ),
    ).toBe(2);
  });

  it("is not moved by one round that was disturbed", () => {
    expect(
      timesAsLong(
        [
          [10, 5],
          [10, 50],
          [10, 5],
        ],
        0,
        1,
      ),
    ).toBe(2);
  });
});

describe("median", () => {
  it("lies between the two in the middle of an even number", () => {
    expect(median([4, 1, 3, 2])).toBe(2.5);
    expect(median([3, 1, 2])).toBe(2);
  });
});
