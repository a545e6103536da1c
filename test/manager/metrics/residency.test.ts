import { describe, expect, it } from "vitest";
import type { ModelManager, ModelMetrics } from "../../../src/index.js";
import { collectMetrics } from "../../../src/metrics/index.js";
import { rejection, settle, startTestSupervisor } from "../../support/test-supervisor.js";

const GB = 1e9;

function of(models: ModelManager, id: string): ModelMetrics | undefined {
  return models.metrics().models.find(({ modelId }) => modelId === id);
}

describe("metrics of models that come and go by themselves", () => {
  it("tell eager loads, loads by requests, and loads by calls, with the seconds that they took", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      models: [
        { id: "eager", source: "eager.gguf" },
        { id: "lazy", source: "lazy.gguf", loadPolicy: "lazy" },
      ],
    });
    await models.ready();
    const gate = backend.hold("start");
    const request = models.generate("lazy", "hi");
    const call = models.load("called", "called.gguf");
    await gate.arrived(2);
    clock.increment(1_500);
    gate.open();
    await Promise.all([request, call]);

    expect(models.metrics().models).toMatchObject([
      { modelId: "eager", loads: { eager: 1, request: 0, call: 0 }, loadSeconds: { sum: 0, count: 1 } },
      { modelId: "lazy", loads: { eager: 0, request: 1, call: 0 }, loadSeconds: { sum: 1.5, count: 1 } },
      { modelId: "called", loads: { eager: 0, request: 0, call: 1 }, loadSeconds: { sum: 1.5, count: 1 } },
    ]);
  });

  it("count requests that waited for a model in vain", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ id: "a", source: "a.gguf", loadPolicy: "lazy" }],
    });
    backend.fail("start", new Error("no"), "a.gguf", 1);

    await rejection(models.generate("a", "hi"));
    const gate = backend.hold("start");
    const leave = new AbortController();
    const left = rejection(models.load("a").then(() => models.generate("a", "hi")));
    const waiting = rejection(models.generate("a", "hi", { signal: leave.signal }));
    await gate.arrived();
    leave.abort(new DOMException("left", "AbortError"));
    await waiting;
    gate.open();
    void left;

    expect(of(models, "a")?.requests).toEqual({ done: 0, failed: 1, aborted: 1 });
  });

  it("count who joins a load, and how long each request waited for it", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      models: [{ id: "a", source: "a.gguf", loadPolicy: "lazy" }],
    });
    const gate = backend.hold("start");
    const first = models.generate("a", "one");
    await gate.arrived();
    clock.increment(2_000);
    const second = models.generate("a", "two");
    await settle();
    clock.increment(1_000);
    gate.open();
    await Promise.all([first, second]);

    expect(of(models, "a")).toMatchObject({
      loads: { request: 1 },
      joinedLoads: 1,
      coldStartSeconds: { sum: 4, count: 2 },
      requests: { done: 2 },
    });
    await models.generate("a", "three");
    expect(of(models, "a")?.coldStartSeconds.count).toBe(2);
  });

  it("count an eviction with how long the model had been idle", async () => {
    const { models, clock } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      overBudget: "evict-idle",
      fake: { models: { "a.gguf": { ramBytes: 6 * GB }, "b.gguf": { ramBytes: 6 * GB } } },
    });
    await models.load("a", "a.gguf");
    await models.generate("a", "hi");
    clock.increment(90_000);
    await models.load("b", "b.gguf");

    expect(of(models, "a")).toMatchObject({
      unloads: { eviction: 1, caller: 0, ttl: 0 },
      evictionIdleSeconds: { sum: 90, count: 1 },
    });
    expect(models.metrics().devices).toMatchObject([{ device: "total", refusals: 0 }]);
  });

  it("25: neither load a model nor keep it awake by being read, and count its TTL", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      models: [{ id: "a", source: "a.gguf", loadPolicy: "lazy", ttlMs: 10_000 }],
    });
    const { registry } = collectMetrics(models);
    await models.generate("a", "hi");
    for (let second = 0; second < 20; second++) {
      clock.increment(1_000);
      await registry.metrics();
      await settle();
    }

    expect(models.info("a")?.status).toBe("registered");
    expect(await registry.metrics()).toContain('model="a",reason="ttl"} 1');
    await settle();
    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("count a failed load once, not the answers from the cache", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ id: "a", source: "a.gguf", loadPolicy: "lazy" }],
    });
    backend.fail("start", new Error("no"));
    for (let time = 0; time < 3; time++) await rejection(models.generate("a", "hi"));

    expect(of(models, "a")).toMatchObject({ loads: { request: 1 }, failedLoads: 1, coldStartSeconds: { count: 0 } });
  });
});
