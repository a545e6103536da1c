import { describe, expect, it } from "vitest";
import {
  availableOn,
  checkFit,
  finiteOrNull,
  resolveBudget,
  separateGpus,
} from "../../../src/manager/memory/budget.js";
import type { Fit, Pool } from "../../../src/manager/memory/budget.js";
import { bytesOn } from "../../../src/manager/memory/claims.js";
import type { Claim } from "../../../src/manager/memory/claims.js";
import type { Device, DeviceInfo, MemoryBudget, Placement } from "../../../src/model.js";

const GIB = 1024 ** 3;

function ram(totalBytes: number, freeBytes = totalBytes): DeviceInfo {
  return { device: "ram", name: "RAM", totalBytes, freeBytes };
}

function gpu(index: number, totalBytes: number, freeBytes = totalBytes, unified?: true): DeviceInfo {
  return { device: `gpu:${index}`, name: `GPU ${index}`, totalBytes, freeBytes, unified };
}

/** A resident model, as the engine reported it. */
function resident(placement: Placement, mappedBytes = 0): Claim {
  return { placement, mappedBytes, measured: true };
}

/** A load under way: claimed, but not allocated yet. */
function loading(placement: Placement, mappedBytes = 0): Claim {
  return { placement, mappedBytes, measured: false };
}

function limit(device: Device, limitBytes: number): Pool {
  return { device, limitBytes, freeBytes: undefined };
}

describe("resolveBudget", () => {
  const MACHINE = [ram(64_000, 60_000), gpu(0, 24_000, 20_000), gpu(1, 24_000, 21_000)];

  interface Case {
    readonly it: string;
    readonly budget: MemoryBudget;
    readonly devices?: readonly DeviceInfo[];
    readonly pools: readonly Pool[];
  }

  const CASES: readonly Case[] = [
    {
      it: "sets no limit on any device when unlimited",
      budget: "unlimited",
      pools: [limit("ram", Infinity), limit("gpu:0", Infinity), limit("gpu:1", Infinity)],
    },
    { it: "takes an integer for one combined pool named total", budget: 8_000, pools: [limit("total", 8_000)] },
    {
      it: "takes a size with a unit for one combined pool named total",
      budget: "8KiB",
      pools: [limit("total", 8_192)],
    },
    { it: "takes zero for a pool that holds nothing", budget: 0, pools: [limit("total", 0)] },
    {
      it: "resolves a map of ram and explicit GPUs per device, by place in the list",
      budget: { ram: 64_000, gpu: ["24KB", 12_000] },
      pools: [limit("ram", 64_000), limit("gpu:0", 24_000), limit("gpu:1", 12_000)],
    },
    {
      it: "keeps an unlimited GPU of a map beside a limited one",
      budget: { ram: 10, gpu: ["unlimited", 5_000] },
      pools: [limit("ram", 10), limit("gpu:0", Infinity), limit("gpu:1", 5_000)],
    },
    {
      it: "reads total and free memory of the GPUs when they are on auto",
      budget: { ram: "unlimited", gpu: "auto" },
      pools: [
        limit("ram", Infinity),
        { device: "gpu:0", limitBytes: 24_000, freeBytes: 20_000 },
        { device: "gpu:1", limitBytes: 24_000, freeBytes: 21_000 },
      ],
    },
    {
      it: "lets a GPU that the map does not list hold nothing",
      budget: { ram: 64_000, gpu: [24_000] },
      pools: [limit("ram", 64_000), limit("gpu:0", 24_000), limit("gpu:1", 0)],
    },
    {
      it: "lets no GPU hold anything when the map lists none",
      budget: { ram: 64_000 },
      pools: [limit("ram", 64_000), limit("gpu:0", 0), limit("gpu:1", 0)],
    },
    {
      it: "ignores places of the list for which there is no GPU",
      budget: { ram: 64_000, gpu: [1, 2, 3] },
      pools: [limit("ram", 64_000), limit("gpu:0", 1), limit("gpu:1", 2)],
    },
    {
      it: "puts the RAM on auto when the map does not say",
      budget: { gpu: "unlimited" },
      pools: [
        { device: "ram", limitBytes: 51_200, freeBytes: 60_000 },
        limit("gpu:0", Infinity),
        limit("gpu:1", Infinity),
      ],
    },
    {
      it: "gives models 80 % of the RAM and all of each GPU on auto, and looks at what is free",
      budget: "auto",
      pools: [
        { device: "ram", limitBytes: 51_200, freeBytes: 60_000 },
        { device: "gpu:0", limitBytes: 24_000, freeBytes: 20_000 },
        { device: "gpu:1", limitBytes: 24_000, freeBytes: 21_000 },
      ],
    },
    {
      it: "has no pool for a GPU that shares the RAM",
      budget: "auto",
      devices: [ram(10_000, 9_000), gpu(0, 10_000, 9_000, true)],
      pools: [{ device: "ram", limitBytes: 8_000, freeBytes: 9_000 }],
    },
    {
      it: "lets nothing into a RAM that auto cannot see",
      budget: "auto",
      devices: [],
      pools: [{ device: "ram", limitBytes: 0, freeBytes: 0 }],
    },
    {
      it: "keeps no model locally at the edge with 2 GiB",
      budget: "edge",
      devices: [ram(2 * GIB)],
      pools: [limit("total", 0)],
    },
    {
      it: "gives models half of the RAM at the edge with more than 2 GiB",
      budget: "edge",
      devices: [ram(2 * GIB + 2)],
      pools: [limit("total", GIB + 1)],
    },
    {
      it: "counts no GPU at the edge",
      budget: "edge",
      devices: [ram(4 * GIB), gpu(0, 8 * GIB)],
      pools: [limit("total", 2 * GIB)],
    },
  ];

  it.each(CASES.map((row) => [row.it, row] as const))("%s", (_, { budget, devices = MACHINE, pools }) => {
    const resolved = resolveBudget(budget, devices);

    expect(resolved).toEqual(pools);
  });
});

describe("separateGpus", () => {
  it("names the GPUs with memory of their own, in order", () => {
    const gpus = separateGpus([ram(1), gpu(0, 1, 1, true), gpu(1, 1), gpu(2, 1)]);

    expect(gpus.map(({ device }) => device)).toEqual(["gpu:1", "gpu:2"]);
  });
});

describe("bytesOn", () => {
  it.each<[Device, number]>([
    ["ram", 100],
    ["gpu:0", 20],
    ["gpu:1", 0],
    ["total", 120],
  ])("counts on %s: %i", (device, expected) => {
    const bytes = bytesOn(device, { ram: 100, "gpu:0": 20 });

    expect(bytes).toBe(expected);
  });
});

describe("availableOn", () => {
  const FREE_RAM: Pool = { device: "ram", limitBytes: 8_000, freeBytes: 5_000 };
  const FREE_GPU: Pool = { device: "gpu:0", limitBytes: 8_000, freeBytes: 5_000 };

  interface Case {
    readonly it: string;
    readonly pool: Pool;
    readonly claims: readonly Claim[];
    readonly available: number;
  }

  const CASES: readonly Case[] = [
    { it: "is the whole limit when nothing is reserved", pool: limit("ram", 8_000), claims: [], available: 8_000 },
    {
      it: "merges what is reserved on RAM and on each GPU",
      pool: limit("total", 8_000),
      claims: [resident({ ram: 100, "gpu:0": 10, "gpu:1": 20 }), loading({ ram: 50, "gpu:0": 5, "gpu:2": 7 })],
      available: 8_000 - 150 - 15 - 20 - 7,
    },
    {
      it: "counts on a GPU what is reserved there, and nothing else",
      pool: limit("gpu:0", 8_000),
      claims: [resident({ ram: 100, "gpu:0": 10, "gpu:1": 20 }), loading({ ram: 50, "gpu:0": 5 })],
      available: 7_985,
    },
    { it: "never goes below zero", pool: limit("ram", 1_000), claims: [resident({ ram: 5_000 })], available: 0 },
    {
      it: "has no end when unlimited, whatever is reserved",
      pool: limit("ram", Infinity),
      claims: [resident({ ram: 5_000 })],
      available: Infinity,
    },
    { it: "is never more than what is free", pool: FREE_RAM, claims: [], available: 5_000 },
    {
      it: "is never more than the limit leaves, however much is free",
      pool: { device: "ram", limitBytes: 8_000, freeBytes: 100_000 },
      claims: [resident({ ram: 3_000 })],
      available: 5_000,
    },
    {
      it: "does not count a resident twice: it is not free any more",
      pool: FREE_RAM,
      claims: [resident({ ram: 2_000 })],
      available: 5_000,
    },
    {
      it: "takes what is reserved, but not yet allocated, off what is free",
      pool: FREE_RAM,
      claims: [loading({ ram: 2_000 })],
      available: 3_000,
    },
    {
      it: "takes a load under way off what is free on a GPU",
      pool: FREE_GPU,
      claims: [loading({ ram: 9_000, "gpu:0": 2_000 })],
      available: 3_000,
    },
    {
      it: "takes the file mapping of a resident off what is free, since the system counts it as free",
      pool: FREE_RAM,
      claims: [resident({ ram: 2_000 }, 1_500)],
      available: 3_500,
    },
    {
      it: "takes the file mapping of a load under way off once",
      pool: FREE_RAM,
      claims: [loading({ ram: 2_000 }, 1_500)],
      available: 3_000,
    },
    {
      it: "does not take a file mapping off what is free on a GPU",
      pool: FREE_GPU,
      claims: [resident({ ram: 2_000, "gpu:0": 1_000 }, 1_500)],
      available: 5_000,
    },
    {
      it: "does not take a file mapping off a fixed limit a second time",
      pool: limit("ram", 8_000),
      claims: [resident({ ram: 2_000 }, 1_500)],
      available: 6_000,
    },
    {
      it: "is nothing when other programs have taken what was free",
      pool: { device: "ram", limitBytes: 8_000, freeBytes: 1_000 },
      claims: [loading({ ram: 2_000 })],
      available: 0,
    },
  ];

  it.each(CASES.map((row) => [row.it, row] as const))("%s", (_, { pool, claims, available }) => {
    const bytes = availableOn(pool, claims);

    expect(bytes).toBe(available);
  });
});

describe("checkFit", () => {
  const TWO_GPUS = [limit("ram", Infinity), limit("gpu:0", 10_000), limit("gpu:1", 2_000)];

  interface Case {
    readonly it: string;
    readonly pools: readonly Pool[];
    readonly placement: Placement;
    readonly claims?: readonly Claim[];
    readonly fit: Fit;
  }

  const CASES: readonly Case[] = [
    {
      it: "always fits when unlimited",
      pools: [limit("ram", Infinity), limit("gpu:0", Infinity)],
      placement: { ram: 99, "gpu:0": 99 },
      claims: [resident({ ram: 1e15, "gpu:0": 1e15 })],
      fit: { fits: true, requiredBytes: 198, availableBytes: Infinity },
    },
    {
      it: "fits into a combined pool when RAM and all GPUs together do",
      pools: [limit("total", 5_000)],
      placement: { ram: 1_000, "gpu:0": 3_000 },
      fit: { fits: true, requiredBytes: 4_000, availableBytes: 5_000 },
    },
    {
      it: "sums RAM and all GPUs for a combined pool and names total",
      pools: [limit("total", 5_000)],
      placement: { ram: 3_000, "gpu:0": 3_000 },
      fit: { fits: false, device: "total", requiredBytes: 6_000, availableBytes: 5_000 },
    },
    {
      it: "counts what residents hold on a GPU against a combined pool",
      pools: [limit("total", 5_000)],
      placement: { ram: 3_000 },
      claims: [resident({ ram: 0, "gpu:0": 3_000 })],
      fit: { fits: false, device: "total", requiredBytes: 3_000, availableBytes: 2_000 },
    },
    {
      it: "refuses on the GPU that is too small and names it",
      pools: TWO_GPUS,
      placement: { ram: 0, "gpu:0": 5_000, "gpu:1": 5_000 },
      fit: { fits: false, device: "gpu:1", requiredBytes: 5_000, availableBytes: 2_000 },
    },
    {
      it: "lets in on two GPUs what each of them holds",
      pools: TWO_GPUS,
      placement: { ram: 0, "gpu:0": 5_000, "gpu:1": 2_000 },
      fit: { fits: true, requiredBytes: 7_000, availableBytes: 2_000 },
    },
    {
      it: "refuses on RAM",
      pools: [limit("ram", 1_000), limit("gpu:0", Infinity)],
      placement: { ram: 2_000 },
      fit: { fits: false, device: "ram", requiredBytes: 2_000, availableBytes: 1_000 },
    },
    {
      it: "names the first device when several do not fit",
      pools: [limit("ram", 1), limit("gpu:0", 1), limit("gpu:1", 1)],
      placement: { ram: 2, "gpu:0": 3, "gpu:1": 4 },
      fit: { fits: false, device: "ram", requiredBytes: 2, availableBytes: 1 },
    },
    {
      it: "accounts for prior usage per device",
      pools: [limit("ram", Infinity), limit("gpu:0", 10_000)],
      placement: { ram: 0, "gpu:0": 4_000 },
      claims: [resident({ ram: 0, "gpu:0": 7_000 })],
      fit: { fits: false, device: "gpu:0", requiredBytes: 4_000, availableBytes: 3_000 },
    },
    {
      it: "does not mind prior usage on another device",
      pools: [limit("ram", Infinity), limit("gpu:0", 10_000), limit("gpu:1", 10_000)],
      placement: { ram: 0, "gpu:0": 4_000 },
      claims: [resident({ ram: 0, "gpu:1": 7_000 })],
      fit: { fits: true, requiredBytes: 4_000, availableBytes: 10_000 },
    },
    {
      it: "lets in what fits exactly",
      pools: [limit("total", 1_000)],
      placement: { ram: 500 },
      claims: [resident({ ram: 500 })],
      fit: { fits: true, requiredBytes: 500, availableBytes: 500 },
    },
    {
      it: "refuses one byte more than fits",
      pools: [limit("total", 1_000)],
      placement: { ram: 501 },
      claims: [resident({ ram: 500 })],
      fit: { fits: false, device: "total", requiredBytes: 501, availableBytes: 500 },
    },
    {
      it: "says that nothing is available, and not less, when more is reserved than allowed",
      pools: [limit("total", 100)],
      placement: { ram: 100 },
      claims: [resident({ ram: 5_000 })],
      fit: { fits: false, device: "total", requiredBytes: 100, availableBytes: 0 },
    },
    {
      it: "does not refuse over a full device that the model does not use",
      pools: [limit("ram", 0), limit("gpu:0", 5_000)],
      placement: { ram: 0, "gpu:0": 5_000 },
      claims: [resident({ ram: 1_000 })],
      fit: { fits: true, requiredBytes: 5_000, availableBytes: 5_000 },
    },
    {
      it: "refuses what is under the limit, but not free",
      pools: [{ device: "ram", limitBytes: 8_000, freeBytes: 3_000 }],
      placement: { ram: 4_000 },
      fit: { fits: false, device: "ram", requiredBytes: 4_000, availableBytes: 3_000 },
    },
    {
      it: "does not promise the same free bytes to two loads under way",
      pools: [{ device: "ram", limitBytes: 8_000, freeBytes: 5_000 }],
      placement: { ram: 3_000 },
      claims: [loading({ ram: 3_000 })],
      fit: { fits: false, device: "ram", requiredBytes: 3_000, availableBytes: 2_000 },
    },
    {
      it: "lets in what is free beside a resident",
      pools: [{ device: "ram", limitBytes: 8_000, freeBytes: 5_000 }],
      placement: { ram: 3_000 },
      claims: [resident({ ram: 3_000 })],
      fit: { fits: true, requiredBytes: 3_000, availableBytes: 5_000 },
    },
  ];

  it.each(CASES.map((row) => [row.it, row] as const))("%s", (_, { pools, placement, claims = [], fit }) => {
    const outcome = checkFit({ placement }, pools, claims);

    expect(outcome).toEqual(fit);
  });

  it("refuses a GPU that the map does not list", () => {
    const devices = [ram(10_000), gpu(0, 10_000), gpu(1, 10_000)];
    const pools = resolveBudget({ ram: "unlimited", gpu: [10_000] }, devices);

    const listed = checkFit({ placement: { "gpu:0": 1 } }, pools, []);
    const unlisted = checkFit({ placement: { "gpu:1": 1 } }, pools, []);

    expect(listed.fits).toBe(true);
    expect(unlisted).toEqual({ fits: false, device: "gpu:1", requiredBytes: 1, availableBytes: 0 });
  });

  it("counts a GPU that shares the RAM in the RAM's budget", () => {
    const pools = resolveBudget({ ram: 5_000, gpu: "unlimited" }, [ram(10_000), gpu(0, 10_000, 10_000, true)]);

    const fit = checkFit({ placement: { ram: 6_000 } }, pools, []);

    expect(fit).toEqual({ fits: false, device: "ram", requiredBytes: 6_000, availableBytes: 5_000 });
  });
});

describe("finiteOrNull", () => {
  it.each<[number, number | null]>([
    [0, 0],
    [5, 5],
    [Infinity, null],
  ])("writes %d as %j", (bytes, expected) => {
    const written = finiteOrNull(bytes);

    expect(written).toBe(expected);
  });
});
