import { describe, expect, it } from "vitest";
import { Pace } from "../../../../src/backends/node-llama-cpp/scheduler/pace.js";
import { planStep, type Progress, type Work } from "../../../../src/backends/node-llama-cpp/scheduler/step-plan.js";

const decoding: Progress = { promptTokens: 9, evaluatedTokens: 9, decodes: true, isPaused: false, lastStep: 0 };
const prefilling = (left: number): Progress => ({
  promptTokens: left,
  evaluatedTokens: 0,
  decodes: false,
  isPaused: false,
  lastStep: 0,
});

/** Plans the next step, and lets it take so long. */
function step(pace: Pace, slots: readonly Progress[], heavyMs: number, lightMs: number): "light" | "heavy" {
  const { isLight, sliceTokens } = pace.next(slots);
  const plan: Work[] = planStep(slots, { batchSize: 512, sliceTokens, isLight, decodeWidth: Infinity });
  pace.record(slots, plan, isLight, isLight ? lightMs : heavyMs);
  return isLight ? "light" : "heavy";
}

describe("Pace", () => {
  it("lets those that decode go on for 15 % of the time that a long prompt takes", () => {
    const pace = new Pace(512);
    const kinds = Array.from({ length: 12 }, () => step(pace, [decoding, prefilling(5_000)], 100, 5));

    expect(kinds).toEqual([
      ...["heavy", "light", "light", "light"],
      ...["heavy", "light", "light", "light"],
      ...["heavy", "light", "light", "light"],
    ]);
  });

  it("evaluates a short prompt without the long one beside it, once the long one has had its time", () => {
    const pace = new Pace(512);
    step(pace, [prefilling(5_000)], 700, 0);

    expect(step(pace, [prefilling(5_000), prefilling(20)], 700, 60)).toBe("light");
  });

  it("holds up a long prompt for nobody", () => {
    const pace = new Pace(512);
    const slots = [prefilling(5_000), { ...decoding, isPaused: true }];

    expect(Array.from({ length: 3 }, () => step(pace, slots, 100, 5))).toEqual(["heavy", "heavy", "heavy"]);
  });

  it("keeps no credit from one long prompt to the next", () => {
    const pace = new Pace(512);
    step(pace, [decoding, prefilling(5_000)], 1_000, 5);
    step(pace, [decoding], 5, 5);

    expect(step(pace, [decoding, prefilling(5_000)], 1_000, 5)).toBe("heavy");
  });
});
