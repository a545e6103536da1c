import { describe, expect, it } from "vitest";
import type { Pool } from "../../../src/manager/memory/budget.js";
import {
  evictableOn,
  planRoom,
  refusalOf,
  victimsOverLimit,
  type Ahead,
  type Fate,
  type RoomInput,
  type Tenant,
} from "../../../src/manager/memory/room.js";
import type { Device, Placement } from "../../../src/model.js";

function tenant(modelId: string, fate: Fate, placement: Placement | number, over: Partial<Tenant> = {}): Tenant {
  return {
    modelId,
    incarnation: 1,
    fate,
    placement: typeof placement === "number" ? { ram: placement } : placement,
    mappedBytes: 0,
    measured: true,
    isReady: true,
    isInUse: fate === "busy",
    evictionPriority: 0,
    lastUsedAt: 0,
    ...over,
  };
}

const limit = (device: Device, limitBytes: number): Pool => ({ device, limitBytes, freeBytes: undefined });

function ahead(ram: number, waitsFor: readonly Tenant[] = [], evictable = true): Ahead {
  return { placement: { ram }, evictable, waitsFor };
}

/** A load of so many bytes into 10 bytes of RAM. */
function load(ram: number, tenants: readonly Tenant[], others: readonly Ahead[] = []): RoomInput {
  return { placement: { ram }, pools: [limit("ram", 10)], tenants, ahead: others };
}

const namesOf = (tenants: readonly Tenant[]) => tenants.map(({ modelId }) => modelId);

function outcomeOf(input: RoomInput, mayEvict = true): string {
  const plan = planRoom(input, mayEvict);
  return "victims" in plan ? `${plan.outcome} ${namesOf(plan.victims).join(",")}`.trim() : plan.outcome;
}

describe("planRoom", () => {
  const busy = tenant("busy", "busy", 6);

  it.each<[it: string, input: RoomInput, outcome: string]>([
    ["lets in what fits", load(4, [tenant("a", "stays", 6)]), "fits"],
    ["lets in what fits beside what leaves", load(4, [tenant("a", "leaves", 6)]), "fits"],
    ["waits for what leaves, where that is enough", load(6, [tenant("a", "leaves", 6)]), "leaving"],
    ["evicts what is idle", load(6, [tenant("a", "idle", 6)]), "evict a"],
    [
      "evicts no more than needed beside what leaves",
      load(6, [tenant("a", "leaves", 3), tenant("b", "idle", 3), tenant("c", "idle", 3)]),
      "evict b",
    ],
    [
      "evicts nothing where what leaves is enough",
      load(6, [tenant("a", "leaves", 6), tenant("b", "idle", 3)]),
      "leaving",
    ],
    ["waits for what is in use", load(6, [busy]), "busy busy"],
    ["waits for no idle one that is not needed", load(8, [busy, tenant("a", "idle", 2)]), "busy busy"],
    [
      "takes idle ones before those in use, and of these the ones with the highest priority",
      load(7, [
        tenant("a", "idle", 3, { lastUsedAt: 9 }),
        tenant("b", "busy", 3),
        tenant("c", "busy", 3, { lastUsedAt: 1, evictionPriority: 5 }),
      ]),
      "busy a,c",
    ],
    ["takes both where both are needed", load(9, [busy, tenant("a", "idle", 4)]), "busy a,busy"],
    ["waits for a load under way, which cannot be told to go", load(6, [{ ...busy, isReady: false }]), "busy"],
    [
      "refuses what cannot fit because of what stays",
      load(6, [tenant("a", "stays", 6), tenant("b", "idle", 2)]),
      "refuse",
    ],
    ["refuses what never fits", load(11, [tenant("a", "idle", 1)]), "refuse"],
    ["waits behind a load that takes all the room", load(6, [tenant("a", "leaves", 6)], [ahead(6)]), "busy"],
    ["refuses where that one will never go", load(6, [tenant("a", "leaves", 6)], [ahead(6, [], false)]), "refuse"],
    ["lets in what fits now and beside that one later", load(3, [busy], [ahead(6, [busy])]), "fits"],
    ["keeps the room of that one", load(3, [busy], [ahead(8, [busy])]), "busy"],
    [
      "evicts what does not make that one wait longer",
      load(4, [busy, tenant("a", "idle", 3)], [ahead(6, [busy])]),
      "evict a",
    ],
  ])("%s", (_it, input, outcome) => {
    expect(outcomeOf(input)).toBe(outcome);
  });

  it("evicts nothing and waits for nobody in use where it may not", () => {
    expect(outcomeOf(load(6, [tenant("a", "idle", 6)]), false)).toBe("refuse");
    expect(outcomeOf(load(6, [busy]), false)).toBe("refuse");
    expect(outcomeOf(load(6, [tenant("a", "leaves", 6)]), false)).toBe("leaving");
    expect(outcomeOf(load(4, [busy]), false)).toBe("fits");
  });

  it("compares victims by what they free on the device that lacks room", () => {
    const input: RoomInput = {
      placement: { ram: 1, "gpu:0": 4 },
      pools: [limit("ram", 100), limit("gpu:0", 10)],
      tenants: [tenant("large", "idle", { "gpu:0": 6 }), tenant("small", "idle", { ram: 50, "gpu:0": 4 })],
      ahead: [],
    };

    expect(outcomeOf(input)).toBe("evict small");
  });

  it("looks at the device that lacks room", () => {
    const input = {
      placement: { ram: 1, "gpu:0": 6 },
      pools: [limit("ram", 10), limit("gpu:0", 10)],
      tenants: [
        tenant("inRam", "idle", 9, { lastUsedAt: 0 }),
        tenant("onGpu", "idle", { "gpu:0": 6 }, { lastUsedAt: 5 }),
      ],
      ahead: [],
    };

    expect(outcomeOf(input)).toBe("evict onGpu");
  });
});

describe("refusalOf", () => {
  it("names the device, both numbers and what could be evicted there", () => {
    const tenants = [tenant("a", "stays", 6), tenant("b", "idle", 2), tenant("c", "busy", 1)];

    expect(refusalOf(load(6, tenants))).toEqual({
      device: "ram",
      requiredBytes: 6,
      availableBytes: 1,
      evictableBytes: 3,
    });
  });

  it("counts those who came before as there", () => {
    expect(refusalOf(load(6, [], [ahead(7)]))).toMatchObject({ requiredBytes: 6, availableBytes: 3 });
  });
});

describe("evictableOn", () => {
  it("is what models of these fates hold on that device alone", () => {
    const tenants = [
      tenant("a", "idle", { ram: 1, "gpu:0": 4 }),
      tenant("b", "busy", { "gpu:0": 2 }),
      tenant("c", "leaves", { "gpu:0": 2 }),
    ];

    expect(
      ["ram" as const, "gpu:0" as const, "total" as const].map((device) => evictableOn(device, tenants, ["idle"])),
    ).toEqual([1, 4, 5]);
  });
});

describe("victimsOverLimit", () => {
  const pools = [limit("ram", 5)];

  it.each<[it: string, tenants: readonly Tenant[], victims: string[]]>([
    ["is nobody where all is within it", [tenant("a", "idle", 5)], []],
    ["is no more than needed", [tenant("a", "idle", 3), tenant("b", "idle", 2, { lastUsedAt: 1 })], []],
    ["is the smallest sufficient set", [tenant("a", "idle", 4), tenant("b", "idle", 2, { lastUsedAt: 1 })], ["b"]],
    ["is nobody where what leaves is enough", [tenant("a", "leaves", 4), tenant("b", "idle", 5)], []],
    [
      "is every idle one where not even that is enough",
      [tenant("a", "busy", 6), tenant("b", "idle", 1), tenant("c", "stays", 1)],
      ["b"],
    ],
  ])("%s", (_it, tenants, victims) => {
    expect(namesOf(victimsOverLimit(pools, tenants))).toEqual(victims);
  });
});
