import { describe, expect, it } from "vitest";
import type { ModelSupervisorOptions } from "../../src/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** Lazy models of these sizes, all used once, a second apart; the budget is 10. */
async function startUsed(
  sizes: Record<string, number>,
  overBudget: NonNullable<ModelSupervisorOptions["overBudget"]> = "evict-idle",
) {
  const started = await startTestSupervisor({
    memoryBudget: 10,
    overBudget,
    fake: {
      models: {
        ...Object.fromEntries(Object.entries(sizes).map(([id, ramBytes]) => [id, { ramBytes }])),
        next: { ramBytes: 3 },
      },
    },
    models: Object.keys(sizes).map((id) => ({ id, source: id, loadPolicy: "lazy" as const })),
  });
  for (const id of Object.keys(sizes)) {
    await started.models.generate(id, "hi");
    started.clock.increment(1_000);
  }
  return started;
}

const statuses = (started: Awaited<ReturnType<typeof startUsed>>) =>
  Object.fromEntries(started.models.list().map(({ id, status }) => [id, status]));

describe("a smaller budget", () => {
  it("makes idle models go until what is left fits, no more than needed, and tells what is left", async () => {
    const started = await startUsed({ a: 3, b: 3, c: 3 });

    const report = await started.models.setMemoryBudget(6);

    expect(report.devices).toEqual([
      { device: "total", limitBytes: 6, reservedBytes: 6, measuredBytes: 6, availableBytes: 0, evictableBytes: 6 },
    ]);
    expect(report).toEqual(started.models.memory());
    expect(statuses(started)).toEqual({ a: "registered", b: "ready", c: "ready" });
    expect(started.backend.log.slice(3)).toEqual(["dispose a"]);
  });

  it("resolves when what goes is gone", async () => {
    const started = await startUsed({ a: 3, b: 3, c: 3 });
    const disposal = started.backend.hold("dispose", "a");
    let isDone = false;
    const set = started.models.setMemoryBudget(6).then(() => (isDone = true));
    await disposal.arrived();
    await settle();
    expect(isDone).toBe(false);

    disposal.open();
    await set;

    expect(started.backend.log.at(-1)).toBe("dispose a");
  });

  it("never breaks what is in use: it stays, over the limit, and new loads are refused until it fits", async () => {
    const started = await startUsed({ a: 6, b: 3 });
    const { models, backend } = started;
    const reply = backend.hold("generate", "a");
    const running = models.generate("a", "hi");
    await reply.arrived();

    const report = await models.setMemoryBudget(5);

    expect(report.devices).toMatchObject([{ limitBytes: 5, reservedBytes: 6, evictableBytes: 0 }]);
    expect(report.devices[0]?.availableBytes).toBeLessThanOrEqual(0);
    expect(statuses(started)).toEqual({ a: "ready", b: "registered" });
    expect(await rejection(models.load("next", "next"))).toMatchObject({ code: "insufficient_memory" });
    reply.open();
    expect((await running).modelId).toBe("a");
    // idle now, it makes room like any other
    expect(await models.load("next", "next")).toMatchObject({ status: "ready" });
    expect(statuses(started)).toEqual({ a: "registered", b: "registered", next: "ready" });
  });

  it("makes nothing go by default, and refuses new loads until it fits", async () => {
    const started = await startUsed({ a: 3, b: 3 }, "refuse");
    const { models } = started;

    const report = await models.setMemoryBudget(5);

    expect(report.devices).toMatchObject([{ limitBytes: 5, reservedBytes: 6 }]);
    expect(statuses(started)).toEqual({ a: "ready", b: "ready" });
    expect((await models.generate("a", "hi")).modelId).toBe("a");
    expect(await rejection(models.load("next", "next"))).toMatchObject({ code: "insufficient_memory" });
    await models.unload("a");
    await models.unload("b");
    expect(await models.load("next", "next")).toMatchObject({ status: "ready" });
  });

  it("is answered where a disposal fails", async () => {
    const started = await startUsed({ a: 6 });
    started.backend.fail("dispose", new Error("stuck"), "a");

    const report = await started.models.setMemoryBudget(5);

    expect(report).toMatchObject({ devices: [{ reservedBytes: 6 }], unreleased: [{ modelId: "a" }] });
  });

  it("is refused if it is none, and then nothing changes", async () => {
    const started = await startUsed({ a: 6 });

    expect(await rejection(started.models.setMemoryBudget({ ram: -1 }))).toMatchObject({ code: "invalid_option" });

    expect(started.models.memory().devices).toMatchObject([{ limitBytes: 10 }]);
  });
});

describe("a larger budget", () => {
  it("lets in what waits for room", async () => {
    const started = await startUsed({ a: 6 });
    const { models } = started;
    const lease = await models.acquire("a");
    await models.register("b", "a");
    const request = models.generate("b", "hi");
    await settle();
    expect(models.info("b")?.status).toBe("loading");

    await models.setMemoryBudget(12);

    expect((await request).modelId).toBe("b");
    expect(models.isLoaded("a")).toBe(true);
    lease.release();
  });

  it("lets in what was refused before", async () => {
    const started = await startUsed({ a: 8 }, "refuse");
    const { models } = started;
    expect(await rejection(models.load("next", "next"))).toMatchObject({ code: "insufficient_memory" });

    const report = await models.setMemoryBudget("unlimited");

    expect(report.devices).toMatchObject([{ device: "ram", limitBytes: null, reservedBytes: 8, availableBytes: null }]);
    expect(await models.load("next", "next")).toMatchObject({ status: "ready" });
  });

  it("is what plan goes by", async () => {
    const started = await startUsed({ a: 8 }, "refuse");
    expect(await started.models.plan("next")).toMatchObject({ outcome: "refuse" });

    await started.models.setMemoryBudget(11);

    expect(await started.models.plan("next")).toMatchObject({ outcome: "fits" });
  });
});
