import { describe, expect, it, vi } from "vitest";
import { DEFAULT_MODEL } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { rejection, settle, startTestSupervisor, type TestSupervisor } from "../support/test-supervisor.js";

/** The manager dies of a bug, and the next one has begun. */
async function restartManager({ models }: TestSupervisor): Promise<void> {
  vi.spyOn(Executor.prototype, "handle").mockImplementationOnce(() => {
    throw new Error("a bug in the manager");
  });
  await rejection(models.setDefault("nobody"));
}

describe("a restarted manager", () => {
  it("declares what was registered again, and loads none of it", async () => {
    const started = await startTestSupervisor({ models: [{ id: "lazy", source: "lazy", loadPolicy: "lazy" }] });
    const { models, backend } = started;
    await models.register("registered", "r", { default: true, ttlMs: 7_000 });
    await models.generate("registered", "hi");

    await restartManager(started);
    await settle();

    expect(models.list().map(({ id, status, capabilities }) => [id, status, capabilities])).toEqual([
      ["lazy", "registered", ["generate", "chat"]],
      ["registered", "registered", ["generate", "chat"]],
    ]);
    expect(models.defaultId()).toBe("registered");
    expect(backend.log).toEqual(["start registered", "dispose registered"]);
    expect((await models.generate(DEFAULT_MODEL, "hi")).modelId).toBe("registered");
    expect(models.info("registered")?.expiresAt).toBe(7_000);
  });

  it("does not bring back what was removed", async () => {
    const started = await startTestSupervisor();
    await started.models.register("a", "a");
    await started.models.register("b", "b");
    await started.models.remove("a");

    await restartManager(started);
    await settle();

    expect(started.models.list().map(({ id }) => id)).toEqual(["b"]);
  });

  it("is told to callers who waited: for a load, for a next life, for room, for a check", async () => {
    const started = await startTestSupervisor({
      memoryBudget: 10,
      overBudget: "evict-idle",
      fake: { models: { a: { ramBytes: 6 }, b: { ramBytes: 6 }, c: { ramBytes: 1 }, d: { ramBytes: 1 }, e: {} } },
    });
    const { models, backend } = started;
    for (const id of ["a", "b", "c", "d"]) await models.register(id, id);
    const lease = await models.acquire("a");
    await models.generate("d", "hi");
    const holds = [backend.hold("start", "c"), backend.hold("dispose", "d"), backend.hold("resolve", "e")];
    const unloading = rejection(models.unload("d"));
    const waiting = [
      rejection(models.generate("b", "hi")),
      rejection(models.generate("c", "hi")),
      rejection(models.generate("d", "hi")),
      rejection(models.register("e", "e")),
    ];
    await Promise.all(holds.map((gate) => gate.arrived()));

    await restartManager(started);

    for (const error of await Promise.all([...waiting, unloading]))
      expect(error).toMatchObject({ code: "request_aborted", reason: "the manager was restarted" });
    for (const gate of holds) gate.open();
    await settle();
    expect(() => lease.release()).not.toThrow();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect(backend.liveCopies).toBe(0);
    for (const id of ["b", "c", "d", "a"]) expect((await models.generate(id, "hi")).modelId).toBe(id);
    expect(models.memory().devices[0]?.reservedBytes).toBe(8);
  });

  it("lets a request wait for the memory that the last one's models still hold", async () => {
    const started = await startTestSupervisor({
      memoryBudget: 10,
      fake: { models: { a: { ramBytes: 6 } } },
      models: [{ id: "a", source: "a", loadPolicy: "lazy" }],
    });
    const { models, backend } = started;
    await models.generate("a", "hi");
    const disposal = backend.hold("dispose");
    await restartManager(started);
    await disposal.arrived();

    const request = models.generate("a", "again");
    await settle();
    expect(backend.log).toEqual(["start a"]);
    disposal.open();

    expect((await request).modelId).toBe("a");
    expect(backend.maxLiveCopies).toBe(1);
  });

  it("goes on sweeping", async () => {
    const started = await startTestSupervisor({
      models: [{ id: "a", source: "a", loadPolicy: "lazy", ttlMs: 1_000 }],
    });
    const { models, clock } = started;
    await models.generate("a", "hi");
    await restartManager(started);
    await settle();
    await models.generate("a", "hi");

    clock.increment(1_000);
    await settle();

    expect(models.info("a")?.status).toBe("registered");
  });

  it("keeps the default that setDefault chose", async () => {
    const started = await startTestSupervisor({
      models: [
        { id: "a", source: "a", loadPolicy: "lazy", default: true },
        { id: "b", source: "b", loadPolicy: "lazy" },
      ],
    });
    await started.models.setDefault("b");

    await restartManager(started);
    await settle();

    expect(started.models.defaultId()).toBe("b");
  });
});
