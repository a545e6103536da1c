import { describe, expect, it } from "vitest";
import { SliceSizes } from "../../../../src/backends/node-llama-cpp/scheduler/slice-sizes.js";

/** Evaluates slices as they are chosen, on an engine that takes `ms(tokens)`; returns the sizes. */
function run(sizes: SliceSizes, ms: (tokens: number) => number, isShared: boolean, steps = 6): number[] {
  return Array.from({ length: steps }, () => {
    const size = sizes.choose(isShared);
    sizes.record(size, ms(size));
    return size;
  });
}

describe("SliceSizes", () => {
  it("begins with 128 tokens", () => {
    expect(new SliceSizes(512).choose(false)).toBe(128);
    expect(new SliceSizes(512).choose(true)).toBe(128);
  });

  it("grows to 512 on a fast engine while nobody else decodes, and stays at 128 beside others", () => {
    expect(run(new SliceSizes(512), (tokens) => tokens / 50, false)).toEqual([128, 128, 512, 512, 512, 512]);
    expect(run(new SliceSizes(512), (tokens) => tokens / 50, true)).toEqual([128, 128, 128, 128, 128, 128]);
  });

  it("shrinks on a slow engine, so that others wait less", () => {
    expect(run(new SliceSizes(512), (tokens) => 2 * tokens, true)).toEqual([128, 128, 32, 32, 32, 32]);
    expect(run(new SliceSizes(512), (tokens) => 6 * tokens, false)).toEqual([128, 128, 64, 64, 64, 64]);
  });

  it("does not shrink to a size that the engine works badly with", () => {
    const ms = (tokens: number) => (tokens < 128 ? 10 * tokens : 6 * tokens);

    expect(run(new SliceSizes(512), ms, true)).toEqual([128, 128, 32, 64, 128, 128]);
  });

  it("tries a size again after some time, if what was measured was bad luck", () => {
    const sizes = new SliceSizes(512);
    for (const ms of [2_000, 1_000]) sizes.record(128, ms); // the machine was busy with something else
    const chosen = run(sizes, (tokens) => tokens, false, 200);

    expect(chosen[0]).toBe(64);
    expect(chosen.at(-1)).toBeGreaterThanOrEqual(256);
  });

  it("never exceeds the batch", () => {
    expect(run(new SliceSizes(64), () => 0.1, false)).toEqual([64, 64, 64, 64, 64, 64]);
    expect(new SliceSizes(8).choose(true)).toBe(8);
  });
});
