import { describe, expect, it } from "vitest";
import { expiresAt, isExpired, type Idleness } from "../../src/table/expiry.js";

const model = (traits: Partial<Idleness> = {}): Idleness => ({
  ttlMs: 100,
  loadedAt: 1_000,
  lastUsedAt: undefined,
  leases: 0,
  ...traits,
});

describe("expiresAt", () => {
  it.each<{ name: string; given: Idleness; at: number | undefined }>([
    { name: "counted from the load if it was never used", given: model(), at: 1_100 },
    { name: "counted from the last use", given: model({ lastUsedAt: 1_500 }), at: 1_600 },
    {
      name: "not before the load's, if the clock was set back in between",
      given: model({ lastUsedAt: 400 }),
      at: 1_100,
    },
    { name: "at once with a time of 0", given: model({ ttlMs: 0, lastUsedAt: 1_500 }), at: 1_500 },
    { name: "none while in use", given: model({ lastUsedAt: 1_500, leases: 1 }), at: undefined },
    { name: "none while in use, with a time of 0", given: model({ ttlMs: 0, leases: 2 }), at: undefined },
    { name: "none without a time to live", given: model({ ttlMs: Infinity, lastUsedAt: 1_500 }), at: undefined },
  ])("is $name", ({ given, at }) => {
    expect(expiresAt(given)).toBe(at);
  });
});

describe("isExpired", () => {
  it.each<{ name: string; given: Idleness; now: number; expired: boolean }>([
    { name: "false until its moment", given: model({ lastUsedAt: 1_500 }), now: 1_599, expired: false },
    { name: "true at its moment", given: model({ lastUsedAt: 1_500 }), now: 1_600, expired: true },
    { name: "true later", given: model(), now: 1e12, expired: true },
    { name: "true at once with a time of 0", given: model({ ttlMs: 0 }), now: 1_000, expired: true },
    { name: "false in use, however late", given: model({ leases: 1 }), now: 1e12, expired: false },
    {
      name: "false without a time to live, however late",
      given: model({ ttlMs: Infinity }),
      now: 1e15,
      expired: false,
    },
  ])("is $name", ({ given, now, expired }) => {
    expect(isExpired(given, now)).toBe(expired);
  });
});
