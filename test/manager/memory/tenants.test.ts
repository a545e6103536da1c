import { describe, expect, it } from "vitest";
import { DisposeFailedError } from "../../../src/index.js";
import type { Backing, Status } from "../../../src/index.js";
import { blank } from "../../../src/manager/decision.js";
import { memoryReport } from "../../../src/manager/memory/report.js";
import { tenantsOf } from "../../../src/manager/memory/tenants.js";
import { loadSettings } from "../../../src/manager/options.js";
import type { Entry, Reservation } from "../../../src/table/entry.js";
import { LiveModel } from "../../../src/table/live-model.js";
import { createModelTable } from "../../../src/table/model-table.js";

const NOW = 100_000;
const GRACE_MS = 30_000;

const backing: Backing = {
  exited: new Promise(() => undefined),
  memory: () => ({ ramBytes: 0, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes: 0 }),
  queued: () => 0,
  dispose: () => Promise.resolve(),
};

interface Case {
  readonly status?: Status;
  readonly options?: Parameters<typeof loadSettings>[0];
  readonly loadedAt?: number;
  /** The times at which it was taken; and given back, unless it is still held. */
  readonly usedAt?: number;
  readonly isHeld?: boolean;
  readonly reservation?: Partial<Reservation>;
  readonly row?: Partial<Entry>;
}

/** One model in the table, in its life number 1, which has claimed 5 bytes. */
function tableOf({ status = "ready", options = {}, loadedAt = 0, usedAt, isHeld, reservation, row }: Case) {
  const { table, writer } = createModelTable([{ device: "ram", name: "RAM", totalBytes: 100, freeBytes: 100 }], {
    ram: 20,
  });
  const live = new LiveModel(backing);
  const settings = loadSettings(options, Infinity);
  const entry = { ...blank("a", "a", settings, true), incarnation: 1, status: "ready" as const, live, loadedAt };
  writer.put(entry);
  if (usedAt !== undefined) live.block.acquire(usedAt);
  if (usedAt !== undefined && !isHeld) live.block.release(usedAt);
  const hasLife = status === "ready" || status === "unloading";
  writer.put({ ...entry, status, live: hasLife ? live : undefined, ...row });
  writer.reserve({
    modelId: "a",
    incarnation: 1,
    placement: { ram: 5 },
    mappedBytes: 0,
    measured: true,
    number: 1,
    live,
    stuck: false,
    ...reservation,
  });
  return { table, writer };
}

const tenantOf = (of: Case) => tenantsOf(tableOf(of).table, NOW, GRACE_MS)[0];

describe("what becomes of a claim on memory", () => {
  it.each<[it: string, of: Case, fate: string]>([
    ["an idle model may be evicted", { usedAt: 1 }, "idle"],
    ["a model in use is busy", { usedAt: 1, isHeld: true }, "busy"],
    ["one that was just loaded is busy until its first request", { loadedAt: NOW - GRACE_MS + 1 }, "busy"],
    ["but not for longer than so long", { loadedAt: NOW - GRACE_MS }, "idle"],
    ["and no more once it was used", { loadedAt: NOW - 1, usedAt: NOW - 1 }, "idle"],
    ["one that is not evictable stays", { usedAt: 1, options: { evictable: false } }, "stays"],
    ["a load under way is busy", { status: "loading" }, "busy"],
    ["a load under way that is not evictable stays", { status: "loading", options: { evictable: false } }, "stays"],
    ["a model that is unloaded leaves", { status: "unloading", usedAt: 1 }, "leaves"],
    ["one that is not evictable leaves as well", { status: "unloading", options: { evictable: false } }, "leaves"],
    ["a cancelled load leaves", { status: "registered" }, "leaves"],
    ["what is left of a crashed model leaves", { status: "error", row: { disposal: "running" } }, "leaves"],
    ["what cannot be disposed stays", { status: "error", row: { disposal: "stuck" } }, "stays"],
    ["memory that may never come back stays", { status: "error", reservation: { stuck: true } }, "stays"],
    ["an earlier life leaves", { reservation: { incarnation: 0 } }, "leaves"],
    ["an earlier life that is stuck stays", { reservation: { incarnation: 0, stuck: true } }, "stays"],
  ])("%s", (_it, of, fate) => {
    expect(tenantOf(of)).toMatchObject({ modelId: "a", placement: { ram: 5 }, fate });
  });

  it("goes by the last use, or by the load before the first", () => {
    expect(tenantOf({ loadedAt: 3, usedAt: 7 })?.lastUsedAt).toBe(7);
    expect(tenantOf({ loadedAt: 3 })?.lastUsedAt).toBe(3);
  });

  it("knows who can be told to take no more requests, and who is held", () => {
    expect(tenantOf({ usedAt: 1, isHeld: true })).toMatchObject({ isReady: true, isInUse: true });
    expect(tenantOf({ status: "loading" })).toMatchObject({ isReady: false, isInUse: false });
    expect(tenantOf({ status: "unloading", usedAt: 1, isHeld: true })).toMatchObject({ isReady: false, isInUse: true });
  });

  it("counts what was measured after the devices were looked at as not allocated", () => {
    const { table } = tableOf({});

    expect(tenantsOf(table, NOW, GRACE_MS, 0)[0]?.measured).toBe(false);
    expect(tenantsOf(table, NOW, GRACE_MS, 1)[0]?.measured).toBe(true);
  });
});

describe("memoryReport", () => {
  it("tells for each device the limit, what is reserved, what of it is measured, what is left, what may be evicted", () => {
    const { table, writer } = tableOf({ usedAt: 1 });
    const claim = { mappedBytes: 0, live: undefined, stuck: false, number: 1, measured: false };
    writer.reserve({ ...claim, modelId: "b", incarnation: 2, placement: { ram: 3 } });

    expect(memoryReport(table, NOW, GRACE_MS)).toEqual({
      devices: [
        { device: "ram", limitBytes: 20, reservedBytes: 8, measuredBytes: 5, availableBytes: 12, evictableBytes: 5 },
      ],
      unreleased: [{ modelId: "b", incarnation: 2, placement: { ram: 3 } }],
    });
  });

  it("sums all devices for a combined pool, and writes no limit as null", () => {
    const { table, writer } = tableOf({ usedAt: 1, reservation: { placement: { ram: 1, "gpu:0": 2 } } });
    writer.setBudget(10);
    expect(memoryReport(table, NOW, GRACE_MS).devices).toEqual([
      { device: "total", limitBytes: 10, reservedBytes: 3, measuredBytes: 3, availableBytes: 7, evictableBytes: 3 },
    ]);

    writer.setBudget("unlimited");

    expect(memoryReport(table, NOW, GRACE_MS).devices).toMatchObject([
      { device: "ram", limitBytes: null, reservedBytes: 1, availableBytes: null },
    ]);
  });

  it("names the memory of what is in error", () => {
    const error = new DisposeFailedError("a", "hung");
    const { table } = tableOf({ status: "error", row: { error, disposal: "stuck" }, reservation: { stuck: true } });

    expect(memoryReport(table, NOW, GRACE_MS)).toMatchObject({
      devices: [{ reservedBytes: 5, evictableBytes: 0 }],
      unreleased: [{ modelId: "a", incarnation: 1 }],
    });
  });
});
