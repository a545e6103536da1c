import { describe, expect, it } from "vitest";
import { cutTokens, promptRoom, shorterChats } from "../../../src/backends/node-llama-cpp/overflow.js";
import type { ChatMessage } from "../../../src/inference.js";
import { GREEDY } from "./engine-fixture.js";

/** One letter for each message: system, user, assistant, assistant that calls (c), tool. */
function chat(roles: string): ChatMessage[] {
  return Array.from(roles, (role, index): ChatMessage => {
    const content = `${role}${index}`;
    if (role === "s") return { role: "system", content };
    if (role === "u") return { role: "user", content };
    if (role === "t") return { role: "tool", toolCallId: "1", content };
    return { role: "assistant", content };
  });
}

describe("what a conversation may lose", () => {
  it.each([
    ["suaua", ["s0u3a4", "s0a4"]],
    ["suauau", ["s0u3a4u5", "s0u5"]],
    ["ssuau", ["s0s1u4"]],
    // after the last question only what was called and told since
    ["uctctc", ["c1t2c3t4c5", "c3t4c5", "c5"]],
    ["suctat", ["s0c2t3a4t5", "s0a4t5"]],
    ["sucttu", ["s0u5"]],
    ["u", []],
    ["su", []],
    ["ss", []],
    ["aua", ["u1a2", "a2"]],
  ])("is of %s: %s", (roles, shorter) => {
    const found = shorterChats(chat(roles)).map((messages) => messages.map(({ content }) => content).join(""));

    expect(found).toEqual(shorter);
  });
});

describe("what a text may lose", () => {
  it("is what comes after the tokens to keep, as much as there is no room for", () => {
    expect(cutTokens([1, 2, 3, 4, 5], 3, 1)).toEqual([1, 4, 5]);
    expect(cutTokens([1, 2, 3, 4, 5], 3, 0)).toEqual([3, 4, 5]);
    expect(cutTokens([1, 2, 3], 3, 1)).toEqual([1, 2, 3]);
    // no room at all is for the caller to hear of
    expect(cutTokens([1, 2, 3], 1, 1)).toEqual([1, 2, 3]);
  });

  it("leaves room for maxTokens, else for 512 tokens or half of the context", () => {
    expect(promptRoom({ ...GREEDY, maxTokens: 10 }, 100)).toBe(90);
    expect(promptRoom({ ...GREEDY, maxTokens: undefined }, 100)).toBe(50);
    expect(promptRoom({ ...GREEDY, maxTokens: undefined }, 4096)).toBe(3584);
  });
});
