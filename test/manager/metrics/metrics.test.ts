import { describe, expect, it } from "vitest";
import type { ModelManager, ModelMetrics } from "../../../src/index.js";
import { breakManagerOnce, rejection, settle, startTestSupervisor } from "../../support/test-supervisor.js";

const GB = 1e9;

function of(models: ModelManager, id: string): ModelMetrics | undefined {
  return models.metrics().models.find(({ modelId }) => modelId === id);
}

describe("metrics", () => {
  it("counts requests and leases in flight, and keeps their peak over the lives of an id", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    using lease = await models.acquire("a");
    const running = [models.generate("a", "one"), lease.generate("two")];
    await gate.arrived(2);

    expect(of(models, "a")).toMatchObject({ inFlight: 3, peakInFlight: 3 });
    gate.open();
    await Promise.all(running);
    expect(of(models, "a")).toMatchObject({ inFlight: 1, peakInFlight: 3 });
    lease.release();
    await models.unload("a");
    expect(of(models, "a")).toMatchObject({ inFlight: 0, peakInFlight: 3, unloads: { caller: 1 } });
    await models.load("a", "a.gguf");
    await models.generate("a", "three");
    expect(of(models, "a")).toMatchObject({ inFlight: 0, peakInFlight: 3 });
  });

  it("counts requests by outcome, and their wait for a slot", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    await models.generate("a", "one");
    await models.tokenize("a", "one");
    await rejection(models.embed("a", "text")); // it was not loaded for that
    const gate = backend.hold("generate");
    const controller = new AbortController();
    const aborted = rejection(models.generate("a", "two", { signal: controller.signal }));
    await gate.arrived();
    controller.abort();
    await aborted;
    await settle();

    expect(of(models, "a")).toMatchObject({
      requests: { done: 2, aborted: 1, failed: 1 },
      queueSeconds: { sum: 0, count: 1 }, // a call without slots waits for none
    });
  });

  it("keeps the peak of a life that was not looked at before its end, by unload or crash", async () => {
    const { models, backend } = await startTestSupervisor();
    for (const id of ["unloaded", "crashed"]) {
      await models.load(id, "a.gguf");
      await Promise.all([models.generate(id, "one"), models.generate(id, "two")]);
    }
    await models.unload("unloaded");
    backend.crash("crashed");
    await settle();

    expect(backend.liveCopies).toBe(0);
    expect(models.metrics().models).toMatchObject([
      { modelId: "unloaded", inFlight: 0, peakInFlight: 2 },
      { modelId: "crashed", inFlight: 0, peakInFlight: 2 },
    ]);
  });

  it("counts a lease on a crashed model until it is released, and the crash once", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const lease = await models.acquire("a");
    expect(lease.native).toBeDefined(); // so that the crash does not end it

    backend.crash("a");
    await settle();

    expect(of(models, "a")).toMatchObject({ inFlight: 1, peakInFlight: 1, unloads: { crash: 1 } });
    lease.release();
    await settle();
    expect(of(models, "a")).toMatchObject({ inFlight: 0, peakInFlight: 1, unloads: { crash: 1, caller: 0 } });
  });

  it("counts failed, refused and cancelled loads, and the refusals of a device", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "big.gguf": { ramBytes: 11 * GB }, "small.gguf": { ramBytes: 4 * GB } } },
    });
    await rejection(models.load("a", "big.gguf"));
    const gate = backend.hold("start");
    const cancelled = rejection(models.load("a", "small.gguf"));
    await gate.arrived();
    expect(models.memory().devices).toMatchObject([{ device: "total", reservedBytes: 4 * GB, measuredBytes: 0 }]);
    expect(models.metrics().devices).toEqual(models.memory().devices.map((device) => ({ ...device, refusals: 1 })));
    await models.unload("a");
    await cancelled;

    expect(of(models, "a")).toMatchObject({ failedLoads: 1, cancelledLoads: 1, unloads: { caller: 0 } });
  });

  it("wakes no model and moves no clock by being read", async () => {
    const { models, backend, clock } = await startTestSupervisor({ models: [{ id: "idle", source: "idle.gguf" }] });
    await models.ready();
    await models.unload("idle");
    await models.load("a", "a.gguf");
    await models.generate("a", "hi");
    const before = models.list();
    clock.increment(60_000);

    models.metrics();
    await settle();

    expect(models.list()).toEqual(before);
    expect(before).toMatchObject([
      { id: "idle", status: "registered" },
      { id: "a", lastUsedAt: 0 },
    ]);
    expect(backend.log).toEqual(["start idle", "dispose idle", "start a"]);
  });

  it("goes on counting when the manager is restarted, and after the close", async () => {
    const { models } = await startTestSupervisor({ models: [{ id: "a", source: "a.gguf" }] });
    await models.ready();
    await models.load("b", "b.gguf");
    await Promise.all([models.generate("b", "one"), models.generate("b", "two")]);
    await models.unload("a");

    breakManagerOnce();
    await rejection(models.setDefault("b"));
    await models.ready();
    await models.unload("a");

    expect(models.tree().restarts).toBe(1);
    expect(of(models, "a")).toMatchObject({ unloads: { caller: 2 } });
    expect(of(models, "b")).toMatchObject({ peakInFlight: 2 });
    await models.load("a");
    await models.close();
    expect(of(models, "a")).toMatchObject({ unloads: { caller: 2, close: 1 } });
  });

  it("does not depend on listeners, and is not harmed by those that throw", async () => {
    const { models, warnings } = await startTestSupervisor();
    models.on("model:unloaded", () => {
      throw new Error("listener");
    });
    await models.load("a", "a.gguf");
    await models.unload("a");

    expect(of(models, "a")).toMatchObject({ unloads: { caller: 1 } });
    expect(warnings).toHaveLength(1);
  });
});
