import { describe, expect, it } from "vitest";
import {
  chooseSlot,
  reusableTokens,
  type SlotCache,
} from "../../../../src/backends/node-llama-cpp/scheduler/slot-choice.js";

const count = (from: number, length: number) => Array.from({ length }, (_, index) => from + index);
const cache = (tokens: number[], options: Partial<SlotCache> = {}): SlotCache => ({
  tokens,
  scope: "",
  canCut: true,
  age: 0,
  busyNeighbours: 0,
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
    {
      name: "a slot of the context with most room, where no cache helps",
      caches: [cache([], { busyNeighbours: 3 }), cache(count(1000, 50), { busyNeighbours: 1 })],
      chosen: 1,
    },
    {
      name: "a cache that helps, however many are busy beside it",
      caches: [cache(count(0, 60), { busyNeighbours: 3 }), cache([])],
      shared: 60,
      chosen: 0,
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
