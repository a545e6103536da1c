import { execFile } from "node:child_process";
import path from "node:path";
import { promisify } from "node:util";
import { describe, expect, it } from "vitest";
import { InsufficientMemoryError } from "../../src/index.js";
import type { ModelDeclaration, ModelManager, ModelSupervisorOptions } from "../../src/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** How long a load waits for models in use. */
const MAX_WAIT_MS = 30_000;

/** Lazy models by their size, in a budget of 10 units; `options` of single ones. */
async function startSmall(
  sizes: Record<string, number>,
  options: Record<string, Partial<ModelDeclaration>> = {},
  supervisor: Omit<ModelSupervisorOptions, "backend" | "clock" | "logger"> = {},
) {
  const started = await startTestSupervisor({
    memoryBudget: 10,
    overBudget: "evict-idle",
    fake: { models: Object.fromEntries(Object.entries(sizes).map(([id, ramBytes]) => [id, { ramBytes }])) },
    models: Object.keys(sizes).map((id) => ({ id, source: id, loadPolicy: "lazy" as const, ...options[id] })),
    ...supervisor,
  });
  await settle();
  const evicted: string[] = [];
  started.models.on("model:unloading", ({ modelId, reason }) => {
    if (reason === "eviction") evicted.push(modelId);
  });
  return { ...started, evicted };
}

/** Uses models one after the other, a second apart. */
async function use({ models, clock }: Awaited<ReturnType<typeof startSmall>>, ...ids: string[]): Promise<void> {
  for (const id of ids) {
    await models.generate(id, "hi");
    clock.increment(1_000);
    await settle();
  }
}

const reserved = (models: ModelManager) => models.memory().devices.map(({ reservedBytes }) => reservedBytes);
const loaded = (models: ModelManager) =>
  models
    .list()
    .filter(({ status }) => status === "ready")
    .map(({ id }) => id);

/** The time passes in steps, so that whatever is due is done in between. */
async function pass(clock: { increment(ms: number): void }, ms: number): Promise<void> {
  for (let left = ms; left > 0; left -= 1_000) {
    clock.increment(Math.min(1_000, left));
    await settle();
  }
}

describe("a load that does not fit", () => {
  it("makes an idle model go", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    await use(started, "a", "b");

    expect(started.evicted).toEqual(["a"]);
    expect(loaded(started.models)).toEqual(["b"]);
    expect(reserved(started.models)).toEqual([6]);
    expect(started.backend.log).toEqual(["start a", "dispose a", "start b"]);
  });

  it("makes nothing go where it fits", async () => {
    const started = await startSmall({ a: 6, b: 4 });
    await use(started, "a", "b", "a", "b");

    expect(started.evicted).toEqual([]);
  });

  it("makes the least recently used of equals go", async () => {
    const started = await startSmall({ a: 3, b: 3, c: 3, d: 3 });
    await use(started, "a", "b", "c", "a", "d");

    expect(started.evicted).toEqual(["b"]);
  });

  it("makes the one with the highest evictionPriority go, however recently it was used", async () => {
    const started = await startSmall(
      { a: 3, b: 3, c: 3, d: 3 },
      { b: { evictionPriority: -1 }, c: { evictionPriority: 2 } },
    );
    await use(started, "a", "b", "c", "d");

    expect(started.evicted).toEqual(["c"]);
  });

  it("makes a small model go rather than a large one that was used longer ago", async () => {
    const started = await startSmall({ large: 6, small: 3, next: 3 });
    await use(started, "large", "small", "next");

    expect(started.evicted).toEqual(["small"]);
  });

  it("makes no more models go than needed", async () => {
    const started = await startSmall({ a: 2, b: 2, c: 2, d: 4, e: 4 });
    await use(started, "a", "b", "c", "d", "e");

    expect(started.evicted).toEqual(["d"]);
  });

  it("makes models go on the device alone that lacks room", async () => {
    const models = { a: { ramBytes: 6 }, g: { gpuWeightsBytes: 6 }, h: { gpuWeightsBytes: 6 } };
    const started = await startTestSupervisor({
      memoryBudget: { ram: 10, gpu: [10] },
      overBudget: "evict-idle",
      fake: { models, gpuBytes: [100] },
      models: Object.keys(models).map((id) => ({ id, source: id, loadPolicy: "lazy" as const })),
    });
    for (const id of ["a", "g", "h"]) await started.models.generate(id, "hi");

    expect(loaded(started.models)).toEqual(["a", "h"]);
  });

  it("never makes one go that is not evictable", async () => {
    const started = await startSmall({ a: 6, b: 6 }, { a: { evictable: false } });
    await use(started, "a");

    expect(await rejection(started.models.generate("b", "hi"))).toMatchObject({
      code: "insufficient_memory",
      modelId: "b",
      device: "total",
      requiredBytes: 6,
      availableBytes: 4,
      evictableBytes: 0,
      retryable: false,
    });
    expect(loaded(started.models)).toEqual(["a"]);
  });

  it("is refused with what could be evicted, where even that is not enough, and nothing goes for nothing", async () => {
    const started = await startSmall({ a: 3, fixed: 6, b: 6 }, { fixed: { evictable: false } });
    await use(started, "a", "fixed");
    const told: unknown[] = [];
    started.models.on("budget:refused", (event) => told.push(event));

    const facts = { modelId: "b", device: "total", requiredBytes: 6, availableBytes: 1, evictableBytes: 3 };
    expect(await rejection(started.models.generate("b", "hi"))).toMatchObject({
      code: "insufficient_memory",
      ...facts,
    });

    expect(told).toEqual([facts]);
    expect(started.evicted).toEqual([]);
    expect(loaded(started.models)).toEqual(["a", "fixed"]);
  });

  it("is refused at once where it is larger than the whole budget", async () => {
    const started = await startSmall({ a: 6, giant: 11 });
    await use(started, "a");

    expect(await rejection(started.models.generate("giant", "hi"))).toMatchObject({
      code: "insufficient_memory",
      requiredBytes: 11,
    });
    expect(loaded(started.models)).toEqual(["a"]);
  });

  it("is refused by default, and nothing goes", async () => {
    const started = await startSmall({ a: 6, b: 6 }, {}, { overBudget: "refuse" });
    await use(started, "a");

    const error = await rejection(started.models.generate("b", "hi"));

    expect(error).toMatchObject({ code: "insufficient_memory", availableBytes: 4 });
    expect(started.evicted).toEqual([]);
    expect(loaded(started.models)).toEqual(["a"]);
    expect(await rejection(started.models.load("b"))).toMatchObject({ code: "insufficient_memory" });
    await started.models.unload("a");
    expect((await started.models.generate("b", "hi")).modelId).toBe("b");
  });

  it.each(["refuse", "evict-idle"] as const)(
    "waits for memory that is being given back anyway (%s)",
    async (overBudget) => {
      const started = await startSmall({ a: 6, b: 6 }, {}, { overBudget });
      const { models, backend } = started;
      await use(started, "a");
      const disposal = backend.hold("dispose", "a");
      const unloading = models.unload("a");
      await disposal.arrived();

      const request = models.generate("b", "hi");
      await settle();
      expect(models.info("b")?.status).toBe("loading");
      disposal.open();

      expect((await request).modelId).toBe("b");
      await unloading;
      expect(started.evicted).toEqual([]);
    },
  );

  it("does not wait for it by default if it was asked for by hand", async () => {
    const started = await startSmall({ a: 6, b: 6 }, {}, { overBudget: "refuse" });
    const { models, backend } = started;
    await use(started, "a");
    const disposal = backend.hold("dispose", "a");
    const unloading = models.unload("a");
    await disposal.arrived();

    expect(await rejection(models.load("b"))).toMatchObject({ code: "insufficient_memory", availableBytes: 4 });
    disposal.open();
    await unloading;

    expect(await models.load("b")).toMatchObject({ status: "ready" });
  });

  it("is told before by plan, which makes nothing go", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    await use(started, "a");

    expect(await started.models.plan("b")).toMatchObject({
      outcome: "evict",
      evict: ["a"],
      device: "total",
      requiredBytes: 6,
      availableBytes: 4,
    });
    const lease = await started.models.acquire("a");
    expect(await started.models.plan("b")).toMatchObject({ outcome: "refuse", evict: [] });
    lease.release();
    expect(started.evicted).toEqual([]);
  });

  it("evicts for a load by hand as well, which does not wait for models in use", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const lease = await started.models.acquire("a");

    // trying again helps: what is in use may be evicted later
    expect(await rejection(started.models.load("b"))).toMatchObject({
      code: "insufficient_memory",
      evictableBytes: 6,
      retryable: true,
    });
    lease.release();

    expect(await started.models.load("b")).toMatchObject({ status: "ready" });
    expect(started.evicted).toEqual(["a"]);
  });

  it("lets an eager model that made room come back with the next request", async () => {
    const started = await startSmall({ a: 6, b: 6 }, { a: { loadPolicy: "eager" } });
    await started.models.ready();
    await use(started, "a", "b", "a");

    expect(started.backend.log).toEqual(["start a", "dispose a", "start b", "dispose b", "start a"]);
  });
});

describe("a load that waits for models in use", () => {
  it("waits also when it was begun by hand, once a request has joined it", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const lease = await started.models.acquire("a");
    const gate = started.backend.hold("estimate", "b");
    const byHand = started.models.load("b");
    await gate.arrived();
    const request = started.models.generate("b", "hi");
    gate.open();
    await settle();
    lease.release();

    expect((await request).modelId).toBe("b");
    expect(await byHand).toMatchObject({ status: "ready" });
  });

  it("takes the one with the higher priority when they have had their time", async () => {
    const started = await startSmall(
      { keep: 5, go: 5, c: 5 },
      { keep: { evictionPriority: -5 }, go: { evictionPriority: 5 } },
    );
    const { models, clock } = started;
    const leases = [await models.acquire("go"), await models.acquire("keep")];
    const request = models.generate("c", "hi");
    await settle();
    clock.increment(31_000);
    await settle();

    expect([models.info("keep")?.status, models.info("go")?.status]).toEqual(["ready", "unloading"]);
    for (const lease of leases) lease.release();
    await request;
  });

  it("may be tried again when it was refused at last", async () => {
    const { models, clock } = await startSmall({ a: 6, b: 6 });
    using _lease = await models.acquire("a");
    const request = rejection(models.generate("b", "hi"));
    for (let second = 0; second < 61; second++) {
      await settle();
      clock.increment(1_000);
    }

    expect(await request).toMatchObject({ code: "insufficient_memory", retryable: true });
  });

  it("keeps the process alive, which idle models do not", async () => {
    const script = `
      import { ModelSupervisor } from ${JSON.stringify(path.join(import.meta.dirname, "../../src/index.ts"))};
      import { FakeBackend } from ${JSON.stringify(path.join(import.meta.dirname, "../../src/testing/index.ts"))};
      const backend = new FakeBackend({ models: { a: { ramBytes: 6 }, b: { ramBytes: 6 } } });
      const models = await ModelSupervisor.start({ backend, memoryBudget: 10, overBudget: "evict-idle", maxWaitMs: 300 });
      await models.register("b", "b", { ttlMs: 60_000 });
      await models.load("a", "a");
      console.log((await models.generate("b", "x")).modelId);
    `;
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ["--import", "tsx", "--input-type=module", "--eval", script],
      { cwd: path.join(import.meta.dirname, "../.."), timeout: 20_000 },
    );

    expect(stdout).toBe("b\n");
  });
});

describe("a victim", () => {
  it("is told apart in its events", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    await use(started, "a");
    const unloaded: unknown[] = [];
    started.models.on("model:unloading", (event) => unloaded.push(event));
    started.models.on("model:unloaded", (event) => unloaded.push(event));

    await use(started, "b");

    expect(unloaded).toEqual([
      { modelId: "a", incarnation: expect.any(Number), reason: "eviction", idleMs: 1_000 },
      { modelId: "a", incarnation: expect.any(Number), reason: "eviction" },
    ]);
  });

  it("counts as free only when its disposal has ended", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, backend } = started;
    await use(started, "a");
    const disposal = backend.hold("dispose", "a");
    const request = models.generate("b", "hi");
    await disposal.arrived();

    expect(reserved(models)).toEqual([6]);
    expect(backend.log).toEqual(["start a"]);
    expect(models.info("b")).toMatchObject({ status: "loading", placement: {} });
    disposal.open();

    expect((await request).modelId).toBe("b");
    expect(backend.log).toEqual(["start a", "dispose a", "start b"]);
  });

  it("is never that of two loads: each has its own", async () => {
    const started = await startSmall({ a: 5, b: 5, c: 5, d: 5 });
    const { models, backend } = started;
    await use(started, "a", "b");
    const disposals = backend.hold("dispose");
    const requests = [models.generate("c", "hi"), models.generate("d", "hi")];
    await disposals.arrived(2);

    expect(started.evicted).toEqual(["a", "b"]);
    disposals.open();
    expect((await Promise.all(requests)).map(({ modelId }) => modelId)).toEqual(["c", "d"]);
    expect(started.evicted).toEqual(["a", "b"]);
  });

  it("that gets a lease as it is told to go stays, and the plan is drawn again", async () => {
    const started = await startSmall({ a: 3, b: 3, c: 3, d: 6 });
    const { models, backend } = started;
    await use(started, "a", "b", "c");
    // the listener comes between the plan and the second of its victims
    let late: Promise<{ release(): void }> | undefined;
    models.on("model:unloading", ({ modelId }) => {
      if (modelId === "a") late ??= models.acquire("b");
    });

    const request = models.generate("d", "hi");

    expect((await request).modelId).toBe("d");
    expect(models.isLoaded("b")).toBe(true);
    expect(loaded(models)).toEqual(["b", "d"]);
    (await late)?.release();
    expect(backend.disposalsInFlight).toBe(0);
  });

  it("that cannot be disposed is given up for another one", async () => {
    const started = await startSmall({ a: 5, b: 5, c: 5 });
    const { models, backend } = started;
    await use(started, "a", "b");
    backend.fail("dispose", new Error("stuck"), "a");

    await use(started, "c");

    expect(started.evicted).toEqual(["a", "b"]);
    expect(models.info("a")?.status).toBe("error");
    expect(loaded(models)).toEqual(["c"]);
    expect(reserved(models)).toEqual([10]);
  });

  it("whose disposal hangs is given up in its time, and the load refused if there is no other", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, backend, clock } = started;
    await use(started, "a");
    const disposal = backend.hold("dispose", "a");
    const request = rejection(models.generate("b", "hi"));
    await disposal.arrived();

    clock.increment(MAX_WAIT_MS);

    expect(await request).toMatchObject({ code: "insufficient_memory", modelId: "b", evictableBytes: 0 });
    expect(models.info("a")).toMatchObject({ status: "error", error: { code: "dispose_failed" } });
    expect(reserved(models)).toEqual([6]);
    disposal.open();
    await settle();
    expect((await models.generate("b", "again")).modelId).toBe("b");
  });
});

describe("an engine that runs out of memory although the plan said that it fits", () => {
  const outOfMemory = new InsufficientMemoryError({
    modelId: "b",
    device: "ram",
    requiredBytes: 3,
    availableBytes: 1,
    evictableBytes: 0,
  });

  it("gets one model more out of the way, and another try", async () => {
    const started = await startSmall({ a: 3, c: 3, b: 3 });
    await use(started, "a", "c");
    started.backend.fail("start", outOfMemory, "b", 1);

    await use(started, "b");

    expect(started.evicted).toEqual(["a"]);
    expect(started.backend.log).toEqual(["start a", "start c", "dispose a", "start b"]);
  });

  it("gets no third try: then the error is told, and nothing else goes", async () => {
    const started = await startSmall({ a: 3, c: 3, b: 3 });
    await use(started, "a", "c");
    started.backend.fail("start", outOfMemory, "b", 2);

    expect(await rejection(started.models.generate("b", "hi"))).toMatchObject({
      code: "insufficient_memory",
      availableBytes: 1,
    });

    expect(started.evicted).toEqual(["a"]);
    expect(reserved(started.models)).toEqual([3]);
    // no failure of the model: the next request tries at once
    expect((await started.models.generate("b", "again")).modelId).toBe("b");
  });

  it("gets a model out of the way that holds some of the device that was full", async () => {
    const models = { g: { gpuWeightsBytes: 3 }, a: { ramBytes: 3 }, b: { ramBytes: 3 } };
    const started = await startTestSupervisor({
      memoryBudget: { ram: 10, gpu: [10] },
      overBudget: "evict-idle",
      fake: { models, gpuBytes: [100] },
      models: Object.keys(models).map((id) => ({ id, source: id, loadPolicy: "lazy" as const })),
    });
    await started.models.generate("g", "hi");
    started.clock.increment(1_000);
    await started.models.generate("a", "hi");
    started.backend.fail("start", outOfMemory, "b", 1);

    await started.models.generate("b", "hi");

    expect(loaded(started.models)).toEqual(["g", "b"]);
  });

  it("is believed at once where no model can go", async () => {
    const started = await startSmall({ a: 3, b: 3 }, {}, { overBudget: "refuse" });
    await use(started, "a");
    started.backend.fail("start", outOfMemory, "b", 1);

    expect(await rejection(started.models.generate("b", "hi"))).toMatchObject({ code: "insufficient_memory" });
    expect(loaded(started.models)).toEqual(["a"]);
  });

  it("waits until the model that goes is gone", async () => {
    const started = await startSmall({ a: 3, b: 3 });
    const { models, backend } = started;
    await use(started, "a");
    backend.fail("start", outOfMemory, "b", 1);
    const disposal = backend.hold("dispose", "a");
    const request = models.generate("b", "hi");
    await disposal.arrived();
    await settle();
    expect(backend.log).toEqual(["start a"]);

    disposal.open();
    await request;

    expect(backend.log).toEqual(["start a", "dispose a", "start b"]);
  });

  it("may be left by who waits while a model goes for it", async () => {
    const started = await startSmall({ a: 3, b: 3 });
    const { models, backend } = started;
    await use(started, "a");
    backend.fail("start", outOfMemory, "b", 1);
    const disposal = backend.hold("dispose", "a");
    const controller = new AbortController();
    const request = rejection(models.generate("b", "hi", { signal: controller.signal }));
    await disposal.arrived();

    controller.abort(new Error("gone"));
    await request;
    disposal.open();
    await settle();

    expect(models.info("b")?.status).toBe("registered");
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(reserved(models)).toEqual([0]);
  });
});

describe("a model in use", () => {
  it("is waited for by a request, until it is idle", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, backend } = started;
    const reply = backend.hold("generate", "a");
    const running = models.generate("a", "hi");
    await reply.arrived();
    const request = models.generate("b", "hi");
    await settle();

    expect(models.info("a")).toMatchObject({ status: "ready", leases: 1 });
    expect(models.info("b")).toMatchObject({ status: "loading", placement: {} });
    reply.open();

    expect((await running).text).toBe("one two three four five six seven eight");
    expect((await request).modelId).toBe("b");
    expect(backend.disposalsInFlight).toBe(0);
    expect(started.evicted).toEqual(["a"]);
  });

  it("goes on serving what comes for it meanwhile", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    const lease = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();

    for (let second = 0; second < 29; second++) {
      expect((await models.generate("a", "more")).modelId).toBe("a");
      await pass(clock, 1_000);
    }
    expect(models.info("a")?.status).toBe("ready");
    lease.release();

    expect((await request).modelId).toBe("b");
  });

  it("takes no more requests once somebody has waited for maxWaitMs: they come after the swap", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, backend, clock } = started;
    const first = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();
    await pass(clock, MAX_WAIT_MS);

    expect(models.info("a")).toMatchObject({ status: "unloading", leases: 1 });
    const late = models.generate("a", "late");
    await settle();
    expect(models.info("a")?.leases).toBe(1);
    first.release();

    expect((await request).modelId).toBe("b");
    expect((await late).modelId).toBe("a");
    expect(backend.log).toEqual(["start a", "dispose a", "start b", "dispose b", "start a"]);
    expect(backend.disposalsInFlight).toBe(0);
  });

  it("never starves who waits, however many requests come for it one over the other", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    let current = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();

    // there is never a moment without a lease, as long as the model takes requests
    for (let second = 0; second <= 31; second++) {
      const next = await models.acquire("a", { waitForLoad: false }).catch(() => undefined);
      current.release();
      if (next === undefined) break;
      current = next;
      await pass(clock, 1_000);
    }

    await request;
    expect(clock.now()).toBeLessThanOrEqual(MAX_WAIT_MS + 1_000);
  });

  it("that is held for ever makes the load fail after twice maxWaitMs, and can be used again then", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    const lease = await models.acquire("a");
    const request = rejection(models.generate("b", "hi"));
    await settle();
    await pass(clock, MAX_WAIT_MS + 5_000);
    const late = models.generate("a", "late");
    await settle();
    expect(models.info("a")?.status).toBe("unloading");

    await pass(clock, MAX_WAIT_MS);

    expect(await request).toMatchObject({
      code: "insufficient_memory",
      modelId: "b",
      requiredBytes: 6,
      availableBytes: 4,
    });
    expect((await late).modelId).toBe("a");
    expect((await lease.generate("still")).modelId).toBe("a");
    expect((await models.generate("a", "again")).modelId).toBe("a");
    lease.release();
    expect((await models.generate("b", "again")).modelId).toBe("b");
  });

  it("is waited for anew when an unload of it by somebody else was given up", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    const lease = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();
    const unloading = rejection(models.unload("a", { timeoutMs: 10 }));
    await settle();
    clock.increment(10);
    expect(await unloading).toMatchObject({ code: "unload_timeout" });

    lease.release();

    expect((await request).modelId).toBe("b");
    expect(clock.now()).toBe(10);
  });

  it("is not waited for longer than twice maxWaitMs where it never gets ready", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, backend, clock } = started;
    const gate = backend.hold("start", "a");
    const first = models.generate("a", "hi");
    await gate.arrived();
    const request = rejection(models.generate("b", "hi"));
    await settle();

    await pass(clock, 2 * MAX_WAIT_MS - 1_000);
    expect(models.info("b")?.status).toBe("loading");
    await pass(clock, 1_000);

    expect(await request).toMatchObject({ code: "insufficient_memory", modelId: "b" });
    gate.open();
    expect((await first).modelId).toBe("a");
  });

  it("is not waited for by who leaves: it goes on as if nobody had come", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    const lease = await models.acquire("a");
    const controller = new AbortController();
    const request = rejection(models.generate("b", "hi", { signal: controller.signal }));
    await settle();

    controller.abort(new Error("gone"));
    await request;
    await pass(clock, 2 * MAX_WAIT_MS);

    expect(models.info("a")?.status).toBe("ready");
    lease.release();
    await settle();
    expect(started.evicted).toEqual([]);
  });

  it("has the times that maxWaitMs says", async () => {
    const started = await startSmall({ a: 6, b: 6 }, {}, { maxWaitMs: 5_000 });
    const { models, clock } = started;
    const lease = await models.acquire("a");
    const request = rejection(models.generate("b", "hi"));
    await settle();

    await pass(clock, 4_000);
    expect(models.info("a")?.status).toBe("ready");
    await pass(clock, 1_000);
    expect(models.info("a")?.status).toBe("unloading");
    await pass(clock, 5_000);

    expect(await request).toMatchObject({ code: "insufficient_memory" });
    lease.release();
  });

  it("is not waited for where only its drain by somebody else, with a longer time, could make room", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    const lease = await models.acquire("a");
    const unloading = rejection(models.unload("a", { timeoutMs: 10 * MAX_WAIT_MS }));
    const request = rejection(models.generate("b", "hi"));
    await settle();

    await pass(clock, 2 * MAX_WAIT_MS);

    expect(await Promise.race([request, settle().then(() => "waits")])).toMatchObject({ code: "insufficient_memory" });
    await pass(clock, 8 * MAX_WAIT_MS);
    expect(await unloading).toMatchObject({ code: "unload_timeout" });
    lease.release();
  });
});

describe("two loads that wait", () => {
  it("for one model to be gone are both served, one after the other", async () => {
    const started = await startSmall({ a: 6, b: 6, c: 6 });
    const { models, backend } = started;
    await use(started, "a");
    const disposal = backend.hold("dispose", "a");
    const requests = [models.generate("b", "hi"), models.generate("c", "hi")];
    await disposal.arrived();
    await settle();
    disposal.open();

    expect((await Promise.all(requests)).map(({ modelId }) => modelId)).toEqual(["b", "c"]);
    expect(backend.log).toEqual(["start a", "dispose a", "start b", "dispose b", "start c"]);
  });

  it("for one model to be idle are both served, one after the other", async () => {
    const started = await startSmall({ a: 6, b: 6, c: 6 });
    const { models, backend } = started;
    const lease = await models.acquire("a");
    const requests = [models.generate("b", "hi"), models.generate("c", "hi")];
    await settle();
    lease.release();

    expect((await Promise.all(requests)).map(({ modelId }) => modelId)).toEqual(["b", "c"]);
    expect(backend.log).toEqual(["start a", "dispose a", "start b", "dispose b", "start c"]);
  });

  it("do not hold up a third one that fits beside whichever of them comes first", async () => {
    const started = await startSmall({ a: 6, b: 6, small: 3 });
    const { models } = started;
    const lease = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();

    const small = models.generate("small", "hi");
    await settle();
    expect(models.info("small")?.status).toBe("ready");
    await small;
    lease.release();

    expect((await request).modelId).toBe("b");
  });

  it("do not refuse a load by hand that fits", async () => {
    const started = await startSmall({ a: 6, b: 6, small: 3 });
    const { models } = started;
    const lease = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();

    expect(await models.load("small")).toMatchObject({ status: "ready" });
    lease.release();

    expect((await request).modelId).toBe("b");
  });

  it("are not overtaken for ever by small ones that take what is free", async () => {
    const started = await startSmall({ a: 6, b: 8, small: 3 });
    const { models } = started;
    const lease = await models.acquire("a");
    const request = models.generate("b", "hi");
    await settle();
    // with it loaded there would be no room for the first
    const small = models.generate("small", "hi");
    await settle();

    expect(models.info("small")?.status).toBe("loading");
    lease.release();

    expect((await request).modelId).toBe("b");
    expect((await small).modelId).toBe("small");
  });
});

describe("a model that was just loaded", () => {
  it("is kept for its first request", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    await models.load("a");
    expect(models.memory().devices.map(({ evictableBytes }) => evictableBytes)).toEqual([0]);

    const request = models.generate("b", "hi");
    await settle();
    expect(models.info("a")?.status).toBe("ready");
    expect((await models.generate("a", "hi")).modelId).toBe("a");

    expect((await request).modelId).toBe("b");
    expect(clock.now()).toBe(0);
  });

  it("is not kept for longer than maxWaitMs", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, clock } = started;
    await models.load("a");
    const request = models.generate("b", "hi");
    await settle();

    await pass(clock, MAX_WAIT_MS - 1_000);
    expect(models.info("a")?.status).toBe("ready");
    await pass(clock, 1_000);

    expect((await request).modelId).toBe("b");
  });
});

describe("close", () => {
  it("answers everyone who waits for room", async () => {
    const started = await startSmall({ a: 6, b: 6, c: 6 });
    const { models, backend } = started;
    const lease = await models.acquire("a");
    const waiting = ["b", "c"].map((id) => rejection(models.generate(id, "hi")));
    await settle();

    await models.close({ timeoutMs: 0 });

    expect((await Promise.all(waiting)).map((error) => Object(error).code)).toEqual([
      "load_cancelled",
      "load_cancelled",
    ]);
    expect(await models.closed).toEqual({ reason: "closed", unreleased: [] });
    expect(backend.liveCopies).toBe(0);
    lease.release();
  });

  it("answers who waits for a victim to go", async () => {
    const started = await startSmall({ a: 6, b: 6 });
    const { models, backend } = started;
    await use(started, "a");
    const disposal = backend.hold("dispose", "a");
    const request = rejection(models.generate("b", "hi"));
    await disposal.arrived();
    const closing = models.close();
    disposal.open();
    await closing;

    expect(await request).toMatchObject({ code: "load_cancelled", modelId: "b" });
    expect(backend.liveCopies).toBe(0);
  });
});
