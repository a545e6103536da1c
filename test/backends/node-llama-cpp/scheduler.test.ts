import { describe, expect, it } from "vitest";
import {
  chooseSlot,
  planStep,
  reusableTokens,
  SLICE_TOKENS,
  SlotQueue,
  type Progress,
  type SlotCache,
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

    expect([queue.release(0), queue.release(0), queue.release(0)]).toEqual([
      [{ slot: 0, job: "b" }],
      [{ slot: 0, job: "c" }],
      [],
    ]);
    expect(queue.admit("d")).toEqual({ slot: 0 });
  });

  it("lets each job have the slot that is picked for it, also when several become free at once", () => {
    const queue = new SlotQueue<number>(3, 4, (job, free) => free.find((slot) => slot === job) ?? free[0]);

    expect([2, 0, 1, 2, 1].map((job) => queue.admit(job))).toEqual([
      { slot: 2 },
      { slot: 0 },
      { slot: 1 },
      "queued",
      "queued",
    ]);
    expect(queue.release(1, 0, 2)).toEqual([
      { slot: 2, job: 2 },
      { slot: 1, job: 1 },
    ]);
    expect(queue.admit(9)).toEqual({ slot: 0 });
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

const count = (from: number, length: number) => Array.from({ length }, (_, index) => from + index);
const cache = (tokens: number[], options: Partial<SlotCache> = {}): SlotCache => ({
  tokens,
  scope: "",
  canCut: true,
  age: 0,
  ...options,
});

describe("reusableTokens", () => {
  it.each<{ name: string; held: SlotCache; prompt: number[]; scope?: string; reused: number }>([
    { name: "nothing of an empty cache", held: cache([]), prompt: [1, 2], reused: 0 },
    { name: "all that a longer prompt begins with", held: cache([1, 2, 3]), prompt: [1, 2, 3, 4], reused: 3 },
    { name: "up to the first difference", held: cache([1, 2, 3, 4]), prompt: [1, 2, 9, 4], reused: 2 },
    { name: "all but the last token of the same prompt", held: cache([1, 2, 3]), prompt: [1, 2, 3], reused: 2 },
    { name: "all but the last token of a shorter prompt", held: cache([1, 2, 3]), prompt: [1, 2], reused: 1 },
    { name: "nothing of a prompt of one token", held: cache([1, 2, 3]), prompt: [1], reused: 0 },
    { name: "nothing of another scope", held: cache([1, 2, 3]), prompt: [1, 2, 3], scope: "b", reused: 0 },
    {
      name: "the same within a scope",
      held: cache([1, 2, 3], { scope: "b" }),
      prompt: [1, 2, 3],
      scope: "b",
      reused: 2,
    },
    { name: "a state that cannot be cut, whole", held: cache([1, 2], { canCut: false }), prompt: [1, 2, 3], reused: 2 },
    { name: "or not at all", held: cache([1, 2, 3], { canCut: false }), prompt: [1, 2, 4, 5], reused: 0 },
  ])("reuses $name", ({ held, prompt, scope = "", reused }) => {
    expect(reusableTokens(held, { tokens: prompt, scope })).toBe(reused);
  });
});

describe("chooseSlot", () => {
  const long = cache(count(0, 900));
  const prompt = (shared: number, own: number) => ({ tokens: [...count(0, shared), ...count(5000, own)], scope: "" });

  it.each<{ name: string; caches: SlotCache[]; shared?: number; own?: number; chosen: number }>([
    { name: "the only one there is", caches: [long], chosen: 0 },
    { name: "the longest common prefix", caches: [cache(count(0, 40)), long, cache([])], shared: 900, chosen: 1 },
    {
      name: "the longer of two prefixes",
      caches: [cache([...count(0, 60), 8]), cache([...count(0, 80), 8])],
      shared: 100,
      chosen: 1,
    },
    { name: "an empty slot rather than a long cache with a short match", caches: [long, cache([])], chosen: 1 },
    { name: "an empty slot also if that cache is old", caches: [{ ...long, age: 1e6 }, cache([])], chosen: 1 },
    { name: "a shorter cache rather than a long one with a short match", caches: [long, cache([7, 8, 9])], chosen: 1 },
    {
      name: "a cache of another scope, if it is shorter, rather than a long one with a short match",
      caches: [long, cache(count(0, 50), { scope: "b" })],
      chosen: 1,
    },
    { name: "a match that is worth more than what is lost", caches: [cache([]), long], shared: 600, chosen: 1 },
    { name: "no match that is worth less than what is lost", caches: [cache([]), long], shared: 250, chosen: 0 },
    {
      name: "the one that lay unused for longest, of equals",
      caches: [cache(count(1000, 50), { age: 1 }), cache(count(2000, 50), { age: 3 }), cache(count(3000, 50))],
      chosen: 1,
    },
    {
      name: "a long cache that was given up rather than a living one",
      caches: [cache(count(1000, 900), { age: 40 }), cache(count(2000, 400), { age: 1 })],
      chosen: 0,
    },
    {
      name: "a state that can go on rather than one that would have to be cut",
      caches: [cache([...count(0, 80), 8], { canCut: false }), cache(count(0, 30), { canCut: false })],
      shared: 100,
      chosen: 1,
    },
  ])("takes $name", ({ caches, shared = 10, own = 20, chosen }) => {
    expect(chooseSlot(caches, prompt(shared, own))).toBe(chosen);
  });

  it("keeps a cache out of reach of another scope's prompt", () => {
    const mine = cache(count(0, 100), { scope: "a" });
    const other = cache(count(0, 30), { scope: "b" });

    expect(chooseSlot([mine, other], { tokens: count(0, 200), scope: "b" })).toBe(1);
    expect(chooseSlot([mine, other], { tokens: count(0, 200), scope: "a" })).toBe(0);
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
