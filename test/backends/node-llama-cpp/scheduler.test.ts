import { describe, expect, it } from "vitest";
import {
  planStep,
  SLICE_TOKENS,
  SlotQueue,
  type Progress,
  type Work,
} from "../../../src/backends/node-llama-cpp/scheduler.js";

describe("SlotQueue", () => {
  it("gives free slots first, then queues in order, then turns away", () => {
    const queue = new SlotQueue<string>(2, 2);

    expect(["a", "b", "c", "d", "e"].map((job) => queue.admit(job))).toEqual([
      { slot: 0 },
      { slot: 1 },
      "queued",
      "queued",
      "full",
    ]);
    expect(queue.waiting).toBe(2);
  });

  it("hands a slot that is released to the job that waited longest", () => {
    const queue = new SlotQueue<string>(1, 2);
    for (const job of ["a", "b", "c"]) queue.admit(job);

    expect([queue.release(0), queue.release(0), queue.release(0)]).toEqual(["b", "c", undefined]);
    expect(queue.admit("d")).toEqual({ slot: 0 });
  });

  it("does not count a job that gets a slot against a queue of length 0", () => {
    const queue = new SlotQueue<string>(1, 0);

    expect(queue.admit("a")).toEqual({ slot: 0 });
    expect(queue.admit("b")).toBe("full");
  });

  it("lets a waiting job leave, once, and makes its place free", () => {
    const queue = new SlotQueue<string>(1, 1);
    queue.admit("a");
    queue.admit("b");

    expect([queue.withdraw("b"), queue.withdraw("b"), queue.withdraw("a")]).toEqual([true, false, false]);
    expect(queue.admit("c")).toBe("queued");
  });

  it("gives up all that wait when it is drained", () => {
    const queue = new SlotQueue<string>(1, 4);
    for (const job of ["a", "b", "c"]) queue.admit(job);

    expect(queue.drain()).toEqual(["b", "c"]);
    expect(queue.waiting).toBe(0);
  });
});

describe("planStep", () => {
  const decoding: Progress = { promptTokens: 10, evaluatedTokens: 10, decodes: true };
  const prefilling = (left: number): Progress => ({ promptTokens: left + 7, evaluatedTokens: 7, decodes: false });
  const prefill = (tokens: number): Work => ({ type: "prefill", tokens });
  const start: Work = { type: "start" };
  const decode: Work = { type: "decode" };

  it.each<{ name: string; slots: Progress[]; batchSize?: number; plan: Work[] }>([
    { name: "nothing to do", slots: [], plan: [] },
    { name: "all decode", slots: [decoding, decoding], plan: [decode, decode] },
    { name: "a prompt that fits into the slice starts at once", slots: [prefilling(SLICE_TOKENS)], plan: [start] },
    { name: "a longer one is cut", slots: [prefilling(SLICE_TOKENS + 1)], plan: [prefill(SLICE_TOKENS)] },
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
      batchSize: 34,
      plan: [decode, decode, prefill(32)],
    },
    {
      name: "a full batch still advances one prefill",
      slots: [decoding, prefilling(5)],
      batchSize: 1,
      plan: [decode, prefill(1)],
    },
  ])("$name", ({ slots, batchSize = 512, plan }) => {
    expect(planStep(slots, batchSize)).toEqual(plan);
  });

  it("advances every slot in every step, however many prefill", () => {
    const plan = planStep(
      Array.from({ length: 200 }, () => prefilling(50)),
      512,
    );

    expect(plan.filter(({ type }) => type === "wait")).toEqual([]);
  });
});
