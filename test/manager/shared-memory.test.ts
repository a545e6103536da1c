import { describe, expect, it } from "vitest";
import { rejection, startTestSupervisor } from "../support/test-supervisor.js";

const MODEL = { ramBytes: 110, sharedBytes: 100, gpuWeightsBytes: 50, gpuContextBytes: 5 };
const models = { "a.gguf": MODEL, "b.gguf": MODEL };

describe("memory() of models that share their weights", () => {
  it("has them once from the claim on, and each model's placement whole", async () => {
    const { models: manager, backend } = await startTestSupervisor({ fake: { models, gpuBytes: [1_000] } });
    const reserved = () => manager.memory().devices.map(({ reservedBytes }) => reservedBytes);
    const gate = backend.hold("start");
    const loads = [manager.load("one", "a.gguf"), manager.load("two", "a.gguf"), manager.load("other", "b.gguf")];
    await gate.arrived(3);
    const claimed = reserved();

    gate.open();
    await Promise.all(loads);

    expect(claimed).toEqual([2 * 110 + 10, 2 * 55 + 5]);
    expect(reserved()).toEqual(claimed);
    expect(backend.liveBytes).toBe(2 * 165 + 15);
    for (const { placement } of manager.list()) expect(placement).toEqual({ ram: 110, "gpu:0": 55 });

    await manager.unload("one");
    expect(reserved()).toEqual([2 * 110, 2 * 55]);
    await manager.unload("two");
    expect(reserved()).toEqual([110, 55]);
  });

  it("has them once without a GPU, where all of them lie in RAM, and twice for two numbers of layers", async () => {
    const { models: manager, backend } = await startTestSupervisor({ fake: { models, gpuBytes: [1_000] } });
    await manager.load("one", "a.gguf", { gpuLayers: 0 });
    await manager.load("two", "a.gguf", { gpuLayers: 0 });
    expect(manager.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([165 + 15, 0]);

    await manager.load("three", "a.gguf", { gpuLayers: 1 });
    expect(manager.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([165 + 15 + 110, 55]);
    expect(backend.liveBytes).toBe(165 + 15 + 165);
  });

  it("has them as long as one that could not be disposed may hold them", async () => {
    const { models: manager, backend } = await startTestSupervisor({ fake: { models } });
    await manager.load("one", "a.gguf");
    await manager.load("two", "a.gguf");
    backend.fail("dispose", new Error("it hangs on"), undefined, 1);

    expect(await rejection(manager.unload("one"))).toMatchObject({ code: "dispose_failed" });
    await manager.unload("two");

    expect(manager.memory()).toMatchObject({
      devices: [{ reservedBytes: 165 }],
      unreleased: [{ modelId: "one", placement: { ram: 165 } }],
    });
  });
});

describe("a load of weights that are there", () => {
  it("is let in for what is its own, and refused over that", async () => {
    const { models: manager } = await startTestSupervisor({ fake: { models }, memoryBudget: 165 + 15 + 14 });
    await manager.load("one", "a.gguf");

    await expect(manager.plan("a.gguf")).resolves.toMatchObject({
      outcome: "fits",
      placement: { ram: 165 },
      requiredBytes: 15,
      availableBytes: 29,
    });
    await expect(manager.plan("b.gguf")).resolves.toMatchObject({ outcome: "refuse", requiredBytes: 165 });
    await manager.load("two", "a.gguf");
    expect(await rejection(manager.load("three", "a.gguf"))).toMatchObject({
      code: "insufficient_memory",
      requiredBytes: 15,
      availableBytes: 14,
    });
  });

  it("counts what the engine reports for all who hold them, once", async () => {
    const repacked = { ...MODEL, measured: { ramBytes: 210, shared: { key: "a.gguf with 0 layers", ramBytes: 195 } } };
    const { models: manager } = await startTestSupervisor({ fake: { models: { "a.gguf": repacked } } });

    await manager.load("one", "a.gguf");
    await expect(manager.plan("a.gguf")).resolves.toMatchObject({ placement: { ram: 165 }, requiredBytes: 15 });
    await manager.load("two", "a.gguf");

    expect(manager.memory().devices).toMatchObject([{ reservedBytes: 195 + 15 + 15, measuredBytes: 225 }]);
  });

  it.each([Number.NaN, -1, 166])("is refused when the shared part comes out as %d of 165 bytes", async (ramBytes) => {
    const measured = { shared: { key: "weights", ramBytes } };
    const { models: manager, backend } = await startTestSupervisor({
      fake: { models: { "a.gguf": { ...MODEL, measured } } },
    });

    expect(await rejection(manager.load("one", "a.gguf"))).toMatchObject({
      code: "estimate_failed",
      message: expect.stringContaining("shared.ramBytes"),
    });
    expect(backend.liveCopies).toBe(0);
  });
});
