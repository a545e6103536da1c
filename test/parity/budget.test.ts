import { describe, expect, it } from "vitest";
import type { LoadOptions, MemoryBudget, ModelManager } from "../../src/index.js";
import { FakeBackend } from "../../src/testing/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** Resolves when some model has gone to `error`. */
function modelError(models: ModelManager): Promise<unknown> {
  return new Promise((resolve) => models.once("model:error", resolve));
}

/** Reserved bytes per device. */
function reserved(models: ModelManager): Record<string, number> {
  return Object.fromEntries(models.memory().devices.map(({ device, reservedBytes }) => [device, reservedBytes]));
}

/** Everything of this model can be offloaded. */
function offloadable(bytes: number) {
  return { gpuWeightsBytes: bytes };
}

const TWO_GPUS = {
  gpuBytes: [20_000, 20_000],
  models: {
    "small.gguf": offloadable(4_000),
    "large.gguf": offloadable(6_000),
    "partial.gguf": { ramBytes: 3_000, gpuWeightsBytes: 2_000, gpuContextBytes: 500 },
  },
};

describe("memory budget", () => {
  it("as an integer is a combined pool that refuses loads over it", async () => {
    const { models } = await startTestSupervisor({ memoryBudget: 5_000, fake: TWO_GPUS });

    const refused = await rejection(models.load("big", "large.gguf", { mode: "direct", gpuLayers: 0 }));
    const fits = await models.load("small", "small.gguf", { mode: "direct", gpuLayers: 0 });

    expect(refused).toMatchObject({
      code: "insufficient_memory",
      modelId: "big",
      device: "total",
      requiredBytes: 6_000,
      availableBytes: 5_000,
    });
    expect(models.info("big")).toBeUndefined();
    expect(fits.status).toBe("ready");
  });

  it("as an integer counts RAM and GPUs together", async () => {
    const { models } = await startTestSupervisor({ memoryBudget: 7_000, fake: TWO_GPUS });
    await models.load("ram", "small.gguf", { gpuLayers: 0 });

    const refused = await rejection(models.load("gpu", "small.gguf", { gpuLayers: 99 }));

    expect(refused).toMatchObject({ device: "total", requiredBytes: 4_000, availableBytes: 3_000 });
  });

  it("accounts for models that are already resident", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 5_000,
      fake: { models: { "x.gguf": { ramBytes: 3_000 } } },
    });
    await models.load("a", "x.gguf");

    const refused = await rejection(models.load("b", "x.gguf"));
    await models.unload("a");
    const fits = await models.load("b", "x.gguf");

    expect(refused).toMatchObject({
      code: "insufficient_memory",
      device: "total",
      requiredBytes: 3_000,
      availableBytes: 2_000,
    });
    expect(fits.status).toBe("ready");
  });

  it("accounts for loads under way, so that of two that race for the last bytes one gets them", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 5_000,
      fake: { models: { "x.gguf": { ramBytes: 3_000 } } },
    });
    const gate = backend.hold("start");
    const first = models.load("a", "x.gguf");
    const second = rejection(models.load("b", "x.gguf"));
    await gate.arrived();

    const refused = await second;
    gate.open();
    await first;

    expect(refused).toMatchObject({
      code: "insufficient_memory",
      modelId: "b",
      requiredBytes: 3_000,
      availableBytes: 2_000,
    });
    expect(models.list()).toMatchObject([{ id: "a", status: "ready" }]);
  });

  it("per device refuses and names the GPU that is too small", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: { ram: "unlimited", gpu: ["unlimited", 5_000] },
      fake: TWO_GPUS,
    });
    const options: LoadOptions = { mode: "direct", gpuLayers: "max", splitMode: "none", mainGpu: 1 };

    const refused = await rejection(models.load("large", "large.gguf", options));
    const small = await models.load("small", "small.gguf", options);
    const elsewhere = await models.load("large", "large.gguf", { ...options, mainGpu: 0 });

    expect(refused).toMatchObject({
      code: "insufficient_memory",
      device: "gpu:1",
      requiredBytes: 6_000,
      availableBytes: 5_000,
    });
    expect(small.placement).toEqual({ ram: 0, "gpu:1": 4_000 });
    expect(elsewhere.placement).toEqual({ ram: 0, "gpu:0": 6_000 });
  });

  it("per device refuses on RAM where there is no GPU", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: { ram: 5_000, gpu: "unlimited" },
      fake: { models: { "large.gguf": offloadable(6_000) } },
    });

    const refused = await rejection(models.load("large", "large.gguf", { gpuLayers: "max", splitMode: "none" }));

    expect(refused).toMatchObject({
      code: "insufficient_memory",
      device: "ram",
      requiredBytes: 6_000,
      availableBytes: 5_000,
    });
  });

  it("per device refuses on RAM, and what was refused holds nothing", async () => {
    const { models } = await startTestSupervisor({ memoryBudget: { ram: 5_000, gpu: "unlimited" }, fake: TWO_GPUS });

    const refused = await rejection(models.load("large", "large.gguf", { mode: "direct", gpuLayers: 0 }));
    const afterRefusal = reserved(models);
    const small = await models.load("small", "small.gguf", { mode: "direct", gpuLayers: 0 });

    expect(refused).toMatchObject({ device: "ram", requiredBytes: 6_000, availableBytes: 5_000 });
    expect(afterRefusal).toEqual({ ram: 0, "gpu:0": 0, "gpu:1": 0 });
    expect(small.placement).toEqual({ ram: 4_000 });
  });

  it("per device lets a GPU that the map does not list hold nothing", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: { ram: "unlimited", gpu: ["unlimited"] },
      fake: TWO_GPUS,
    });

    const refused = await rejection(models.load("x", "small.gguf", { splitMode: "none", mainGpu: 1 }));
    const listed = await models.load("x", "small.gguf", { splitMode: "none", mainGpu: 0 });

    expect(refused).toMatchObject({ device: "gpu:1", requiredBytes: 4_000, availableBytes: 0 });
    expect(listed.status).toBe("ready");
  });

  it("without a limit always fits", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: "unlimited",
      fake: { ramBytes: 1_000, models: { "huge.gguf": { ramBytes: 999_999_999_999 } } },
    });

    const info = await models.load("huge", "huge.gguf", { mode: "direct" });

    expect(info.status).toBe("ready");
    expect(models.memory().devices).toMatchObject([
      { device: "ram", limitBytes: null, availableBytes: null, reservedBytes: 999_999_999_999 },
    ]);
  });

  it("lets in what fits exactly, and not one byte more", async () => {
    const fake = { models: { "x.gguf": { ramBytes: 5_000 }, "y.gguf": { ramBytes: 1 } } };
    const { models } = await startTestSupervisor({ memoryBudget: 5_000, fake });

    const exact = await models.load("x", "x.gguf");
    const refused = await rejection(models.load("y", "y.gguf"));

    expect(exact.status).toBe("ready");
    expect(refused).toMatchObject({ device: "total", requiredBytes: 1, availableBytes: 0 });
  });

  it.each<[MemoryBudget]>([[-1], [Number.NaN], [Number.POSITIVE_INFINITY], [{ ram: -1 }], [{ gpu: [-1] }]])(
    "is refused at the start when it is not a size: %j",
    async (memoryBudget) => {
      const refused = await rejection(startTestSupervisor({ memoryBudget }));

      expect(refused).toMatchObject({ code: "invalid_option", option: expect.stringMatching(/^memoryBudget/) });
    },
  );

  it("tells listeners what was refused", async () => {
    const { models } = await startTestSupervisor({ memoryBudget: 5_000, fake: TWO_GPUS });
    const events: unknown[] = [];
    models.on("budget:refused", (event) => events.push(event));

    await rejection(models.load("large", "large.gguf"));

    expect(events).toEqual([
      { modelId: "large", device: "total", requiredBytes: 6_000, availableBytes: 5_000, evictableBytes: 0 },
    ]);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY, -1, 2 ** 60])(
    "never takes an estimate of %d bytes for one that fits",
    async (bytes) => {
      const fake = { models: { "odd.gguf": { ramBytes: bytes }, "even.gguf": { ramBytes: 1 } } };
      const { models } = await startTestSupervisor({ memoryBudget: "unlimited", fake });

      const refused = await rejection(models.load("odd", "odd.gguf"));
      const even = await models.load("even", "even.gguf");

      expect(refused).toMatchObject({ code: "estimate_failed", source: "odd.gguf" });
      expect(even.status).toBe("ready");
    },
  );
});

describe("memory budget on auto", () => {
  it("lets models have 80 % of the RAM", async () => {
    const fake = { ramBytes: 10_000, models: { "x.gguf": { ramBytes: 8_000 }, "y.gguf": { ramBytes: 8_001 } } };
    const { models } = await startTestSupervisor({ memoryBudget: "auto", fake });

    const refused = await rejection(models.load("y", "y.gguf"));
    const fits = await models.load("x", "x.gguf");

    expect(refused).toMatchObject({ device: "ram", requiredBytes: 8_001, availableBytes: 8_000 });
    expect(fits.status).toBe("ready");
  });

  it("lets models have all of each GPU", async () => {
    const fake = { gpuBytes: [5_000], models: { "x.gguf": offloadable(5_000), "y.gguf": offloadable(5_001) } };
    const { models } = await startTestSupervisor({ memoryBudget: "auto", fake });

    const refused = await rejection(models.load("y", "y.gguf"));
    const fits = await models.load("x", "x.gguf");

    expect(refused).toMatchObject({ device: "gpu:0", requiredBytes: 5_001, availableBytes: 5_000 });
    expect(fits.placement).toEqual({ ram: 0, "gpu:0": 5_000 });
  });

  it("refuses what is under the limit, but not free now", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: "auto",
      fake: { ramBytes: 10_000, models: { "x.gguf": { ramBytes: 4_000 } } },
    });
    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 10_000, freeBytes: 3_000 }];
    const refused = await rejection(models.load("x", "x.gguf"));

    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 10_000, freeBytes: 4_000 }];
    const fits = await models.load("x", "x.gguf");

    expect(refused).toMatchObject({ device: "ram", requiredBytes: 4_000, availableBytes: 3_000 });
    expect(fits.status).toBe("ready");
  });

  it("does not promise free memory to two loads under way", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: "auto",
      fake: { ramBytes: 10_000, models: { "x.gguf": { ramBytes: 3_000 } } },
    });
    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 10_000, freeBytes: 5_000 }];
    const gate = backend.hold("start");
    const first = models.load("a", "x.gguf");
    await gate.arrived();

    const refused = await rejection(models.load("b", "x.gguf"));
    gate.open();
    await first;

    expect(refused).toMatchObject({ device: "ram", requiredBytes: 3_000, availableBytes: 2_000 });
  });

  it("does not count a resident model twice", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: "auto",
      fake: { ramBytes: 10_000, models: { "x.gguf": { ramBytes: 4_000 } } },
    });
    await models.load("a", "x.gguf");
    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 10_000, freeBytes: 6_000 }];

    const second = await models.load("b", "x.gguf");

    expect(second.status).toBe("ready");
  });

  it("counts the mapped pages of a resident model, which the system counts as free", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: "auto",
      fake: {
        ramBytes: 10_000,
        models: { "mapped.gguf": { ramBytes: 4_000, mappedBytes: 3_000 }, "x.gguf": { ramBytes: 4_000 } },
      },
    });
    await models.load("a", "mapped.gguf");
    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 10_000, freeBytes: 6_000 }];

    const refused = await rejection(models.load("b", "x.gguf"));

    expect(refused).toMatchObject({ device: "ram", requiredBytes: 4_000, availableBytes: 3_000 });
  });

  it("checks a load against what is free when it claims, not when it began", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: "auto",
      fake: { ramBytes: 20_000, models: { "slow.gguf": { ramBytes: 6_000 }, "quick.gguf": { ramBytes: 6_000 } } },
    });
    // 10,000 bytes belong to other programs
    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 20_000, freeBytes: 10_000 }];
    const gate = backend.hold("estimate", "slow.gguf");
    const slow = rejection(models.load("slow", "slow.gguf"));
    await gate.arrived();

    await models.load("quick", "quick.gguf");
    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 20_000, freeBytes: 4_000 }];
    gate.open();

    expect(await slow).toMatchObject({
      code: "insufficient_memory",
      device: "ram",
      requiredBytes: 6_000,
      availableBytes: 4_000,
    });
  });
});

describe("placement on two GPUs", () => {
  it("puts everything on GPU 0 under split mode none", async () => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "large.gguf", { mode: "direct", gpuLayers: "max", splitMode: "none" });

    expect(info.placement).toEqual({ ram: 0, "gpu:0": 6_000 });
    expect(reserved(models)).toEqual({ ram: 0, "gpu:0": 6_000, "gpu:1": 0 });
  });

  it("keeps everything in RAM with gpuLayers: 0", async () => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "large.gguf", { gpuLayers: 0 });

    expect(info.placement).toEqual({ ram: 6_000 });
    expect(reserved(models)).toEqual({ ram: 6_000, "gpu:0": 0, "gpu:1": 0 });
  });

  it.each([1, 5, 33, 99])("offloads with gpuLayers: %i", async (gpuLayers) => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "large.gguf", { gpuLayers, splitMode: "none", mainGpu: 1 });

    expect(info.placement).toEqual({ ram: 0, "gpu:1": 6_000 });
  });

  it("charges a partial offload as what it is", async () => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "partial.gguf", { gpuLayers: 2, splitMode: "layer", tensorSplit: [1, 3] });

    expect(info.placement).toEqual({ ram: 3_000, "gpu:0": 625, "gpu:1": 1_875 });
  });

  it("keeps the KV cache in RAM with offloadKqv: false", async () => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "partial.gguf", { gpuLayers: 2, splitMode: "none", offloadKqv: false });

    expect(info.placement).toEqual({ ram: 3_500, "gpu:0": 2_000 });
  });

  it("leaves a GPU of weight zero alone", async () => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "large.gguf", { tensorSplit: [0, 1] });

    expect(info.placement).toEqual({ ram: 0, "gpu:1": 6_000 });
  });

  it("splits equally without a tensor split", async () => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const info = await models.load("x", "large.gguf", { splitMode: "layer" });

    expect(info.placement).toEqual({ ram: 0, "gpu:0": 3_000, "gpu:1": 3_000 });
  });

  it("uses neither GPU when both share the RAM", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: { ram: 5_000, gpu: "unlimited" },
      fake: TWO_GPUS,
    });
    backend.deviceList = [
      { device: "ram", name: "RAM", totalBytes: 20_000, freeBytes: 20_000 },
      { device: "gpu:0", name: "GPU", totalBytes: 20_000, freeBytes: 20_000, unified: true },
    ];

    const refused = await rejection(models.load("large", "large.gguf"));
    const small = await models.load("small", "small.gguf");

    expect(refused).toMatchObject({ device: "ram", requiredBytes: 6_000, availableBytes: 5_000 });
    expect(small.placement).toEqual({ ram: 4_000 });
  });

  interface Case {
    readonly it: string;
    readonly options: LoadOptions;
    readonly option: string;
  }

  const CASES: readonly Case[] = [
    { it: "refuses a main GPU that does not exist", options: { mainGpu: 2 }, option: "mainGpu" },
    { it: "refuses more weights than there are GPUs", options: { tensorSplit: [1, 1, 1] }, option: "tensorSplit" },
    { it: "refuses a tensor split that leaves out every GPU", options: { tensorSplit: [0, 0] }, option: "tensorSplit" },
  ];

  it.each(CASES.map((row) => [row.it, row] as const))("%s", async (_, { options, option }) => {
    const { models } = await startTestSupervisor({ fake: TWO_GPUS });

    const refused = await rejection(models.load("x", "large.gguf", options));

    expect(refused).toMatchObject({ code: "invalid_option", option });
    expect(models.info("x")).toBeUndefined();
  });
});

describe("plan", () => {
  it("tells that a load would fit, and reserves nothing", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: { ram: 9_000, gpu: [10_000, 4_000] },
      fake: TWO_GPUS,
    });

    const plan = await models.plan("large.gguf", { tensorSplit: [1, 1] });

    expect(plan).toEqual({
      outcome: "fits",
      mode: "server",
      capabilities: ["generate", "chat"],
      placement: { ram: 0, "gpu:0": 3_000, "gpu:1": 3_000 },
      evict: [],
      requiredBytes: 6_000,
      availableBytes: 4_000,
    });
    expect(reserved(models)).toEqual({ ram: 0, "gpu:0": 0, "gpu:1": 0 });
    expect(backend.log).toEqual([]);
    expect(models.list()).toEqual([]);
  });

  it("names the device on which the load that follows is refused, with the same numbers", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: { ram: 9_000, gpu: [10_000, 4_000] },
      fake: TWO_GPUS,
    });
    await models.load("resident", "small.gguf", { splitMode: "none", mainGpu: 1 });

    const plan = await models.plan("large.gguf", { tensorSplit: [1, 1] });
    const refused = await rejection(models.load("x", "large.gguf", { tensorSplit: [1, 1] }));

    expect(plan).toMatchObject({ outcome: "refuse", device: "gpu:1", requiredBytes: 3_000, availableBytes: 0 });
    expect(refused).toMatchObject({ device: "gpu:1", requiredBytes: 3_000, availableBytes: 0 });
  });

  it("rejects with a typed error, like the load would, when the engine fails", async () => {
    const { models, backend } = await startTestSupervisor({ fake: TWO_GPUS });
    const boom = new Error("boom");
    backend.fail("resolve", boom);

    const loaded = await rejection(models.load("x", "large.gguf"));
    const planned = await rejection(models.plan("large.gguf"));

    expect(loaded).toMatchObject({ code: "load_failed", phase: "resolve", cause: boom });
    expect(planned).toMatchObject({ code: "load_failed", phase: "resolve", cause: boom });
  });
});

describe("memory", () => {
  it("shows an estimate until the load is done, then what the engine reports", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: { ram: 10_000, gpu: [10_000] },
      fake: {
        gpuBytes: [20_000],
        models: { "x.gguf": { gpuWeightsBytes: 6_000, measured: { gpuWeightsBytes: 5_500, ramBytes: 200 } } },
      },
    });
    const gate = backend.hold("start");
    const load = models.load("x", "x.gguf");
    await gate.arrived();
    const during = { info: models.info("x"), memory: models.memory() };

    gate.open();
    const info = await load;

    expect(during.info).toMatchObject({ measured: false, placement: { ram: 0, "gpu:0": 6_000 } });
    expect(during.memory.devices).toEqual([
      {
        device: "ram",
        limitBytes: 10_000,
        reservedBytes: 0,
        measuredBytes: 0,
        availableBytes: 10_000,
        evictableBytes: 0,
      },
      {
        device: "gpu:0",
        limitBytes: 10_000,
        reservedBytes: 6_000,
        measuredBytes: 0,
        availableBytes: 4_000,
        evictableBytes: 0,
      },
    ]);
    expect(info).toMatchObject({ measured: true, placement: { ram: 200, "gpu:0": 5_500 } });
    expect(models.memory().devices).toEqual([
      {
        device: "ram",
        limitBytes: 10_000,
        reservedBytes: 200,
        measuredBytes: 200,
        availableBytes: 9_800,
        evictableBytes: 0,
      },
      {
        device: "gpu:0",
        limitBytes: 10_000,
        reservedBytes: 5_500,
        measuredBytes: 5_500,
        availableBytes: 4_500,
        evictableBytes: 0,
      },
    ]);
  });

  it("is given back by an unload when the disposal has ended, and not before", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 5_000,
      fake: { models: { "x.gguf": { ramBytes: 3_000 } } },
    });
    await models.load("a", "x.gguf");
    const gate = backend.hold("dispose");
    const unload = models.unload("a");
    await gate.arrived();

    const refused = await rejection(models.load("b", "x.gguf"));
    gate.open();
    await unload;
    const fits = await models.load("b", "x.gguf");

    expect(refused).toMatchObject({ code: "insufficient_memory", requiredBytes: 3_000, availableBytes: 2_000 });
    expect(fits.status).toBe("ready");
  });

  it("of a crashed model counts until what is left of it has been disposed", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 5_000,
      fake: { models: { "x.gguf": { ramBytes: 3_000 } } },
    });
    const { incarnation } = await models.load("a", "x.gguf");
    const gate = backend.hold("dispose");
    const down = modelError(models);
    backend.crash("a");
    await down;
    await gate.arrived();
    const during = models.memory();
    const refused = await rejection(models.load("b", "x.gguf"));

    gate.open();
    await settle();
    const fits = await models.load("b", "x.gguf");

    expect(during).toMatchObject({
      devices: [{ device: "total", reservedBytes: 3_000 }],
      unreleased: [{ modelId: "a", incarnation, placement: { ram: 3_000 } }],
    });
    expect(refused).toMatchObject({ requiredBytes: 3_000, availableBytes: 2_000 });
    expect(fits.status).toBe("ready");
    expect(models.info("a")).toMatchObject({ status: "error", placement: {} });
  });

  it("of a crashed model is free when its unload resolves", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 5_000,
      fake: { models: { "x.gguf": { ramBytes: 3_000 } } },
    });
    await models.load("a", "x.gguf");
    const gate = backend.hold("dispose");
    const down = modelError(models);
    backend.crash("a");
    await down;
    await gate.arrived();

    const unload = models.unload("a").then(() => reserved(models));
    const early = await Promise.race([unload, settle()]);
    gate.open();
    const late = await unload;

    expect(early).toBeUndefined();
    expect(late).toEqual({ total: 0 });
  });
});

describe("devices", () => {
  it("that cannot be told refuse the start, instead of taking every GPU for absent", async () => {
    const backend = new FakeBackend();
    const noDriver = new Error("no driver");
    backend.deviceList = noDriver;
    const failed = await rejection(startTestSupervisor({ name: "no-devices", backend }));

    backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 1_000, freeBytes: 1_000 }];
    const { models } = await startTestSupervisor({ name: "no-devices", backend });

    expect(failed).toBe(noDriver);
    expect(await models.devices()).toEqual(backend.deviceList);
  });
});
