import { describe, expect, it } from "vitest";
import {
  planStep,
  prefillTokens,
  type Progress,
  type StepLimits,
  type Work,
} from "../../../../src/backends/node-llama-cpp/scheduler/step-plan.js";

const LIMITS: StepLimits = { batchSize: 512, sliceTokens: 128, isLight: false, decodeWidth: Infinity };

describe("planStep", () => {
  const common = { isPaused: false, lastStep: 0 };
  const decoding: Progress = { promptTokens: 10, evaluatedTokens: 10, decodes: true, ...common };
  const prefilling = (left: number): Progress => ({
    promptTokens: left + 7,
    evaluatedTokens: 7,
    decodes: false,
    ...common,
  });
  const wait: Work = { type: "wait" };
  const prefill = (tokens: number): Work => ({ type: "prefill", tokens });
  const start: Work = { type: "start" };
  const decode: Work = { type: "decode" };

  it.each<{ name: string; slots: Progress[]; limits?: Partial<StepLimits>; plan: Work[] }>([
    { name: "nothing to do", slots: [], plan: [] },
    { name: "all decode", slots: [decoding, decoding], plan: [decode, decode] },
    { name: "a prompt that fits into the slice starts at once", slots: [prefilling(128)], plan: [start] },
    { name: "a longer one is cut", slots: [prefilling(129)], plan: [prefill(128)] },
    {
      name: "two long ones share the slice",
      slots: [prefilling(900), prefilling(900)],
      plan: [prefill(64), prefill(64)],
    },
    {
      name: "what a short one leaves goes to the long one",
      slots: [prefilling(900), prefilling(10)],
      plan: [prefill(118), start],
    },
    {
      name: "decoders advance beside a prefill",
      slots: [decoding, prefilling(900), decoding],
      plan: [decode, prefill(128), decode],
    },
    {
      name: "a step fits into one native batch",
      slots: [decoding, decoding, prefilling(900)],
      limits: { batchSize: 34 },
      plan: [decode, decode, prefill(32)],
    },
    {
      name: "a full batch still advances one prefill",
      slots: [decoding, prefilling(5)],
      limits: { batchSize: 1 },
      plan: [decode, prefill(1)],
    },
    {
      name: "a light step leaves long prompts out",
      slots: [decoding, prefilling(900), prefilling(20)],
      limits: { isLight: true, sliceTokens: 32 },
      plan: [decode, wait, start],
    },
    {
      name: "a light step takes as many short prompts as it has room for, the shortest first",
      slots: [prefilling(30), prefilling(12), prefilling(20)],
      limits: { isLight: true, sliceTokens: 32 },
      plan: [wait, start, start],
    },
    {
      name: "a slot whose reader is behind waits",
      slots: [{ ...decoding, isPaused: true }, decoding],
      plan: [wait, decode],
    },
    {
      name: "where not all may advance, those that have waited longest do",
      slots: [
        { ...decoding, lastStep: 4 },
        { ...decoding, lastStep: 2 },
        { ...decoding, lastStep: 3 },
      ],
      limits: { decodeWidth: 2 },
      plan: [wait, decode, decode],
    },
  ])("$name", ({ slots, limits, plan }) => {
    expect(planStep(slots, { ...LIMITS, ...limits })).toEqual(plan);
  });

  it("counts the prompt tokens of a plan", () => {
    const slots = [decoding, prefilling(900), prefilling(10)];

    expect(prefillTokens(slots, planStep(slots, LIMITS))).toBe(128);
  });

  it("advances every slot in every step, however many prefill", () => {
    const plan = planStep(
      Array.from({ length: 200 }, () => prefilling(50)),
      LIMITS,
    );

    expect(plan.filter(({ type }) => type === "wait")).toEqual([]);
  });
});
