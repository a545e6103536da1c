/** Faults that users of such systems have reported; each test has the number of the report in its name. */
import path from "node:path";
import { describe, expect, it } from "vitest";
import { ModelSupervisor, isModelSupervisorError, type StepReport } from "../src/index.js";
import { makeRandomModel } from "../src/testing/index.js";
import { useTemporaryFolder } from "./support/bare-engine.js";
import { rejection, settle, startTestSupervisor } from "./support/test-supervisor.js";

const at = useTemporaryFolder();

async function startReal(name: string) {
  const [file] = await makeRandomModel(at(path.join(`${name}.gguf`)), { preset: "tiny" });
  const models = await ModelSupervisor.start({ name, memoryBudget: "unlimited", maxThreads: 1 });
  await models.load("m", file, { contextSize: 2048, parallel: 1 });
  return models;
}

describe("reports of users", () => {
  it("6: a client that has gone is not worked for any more: the rest of its prompt is never evaluated", async () => {
    await using models = await startReal("report-6");
    const prompt = "the cat is blue and the dog ".repeat(150);
    const promptTokens = (await models.tokenize("m", prompt)).length;
    const controller = new AbortController();
    const steps: StepReport[] = [];
    models.on("engine:step", (step) => {
      steps.push(step);
      controller.abort(new Error("gone"));
    });

    const gone = rejection(models.generate("m", prompt, { signal: controller.signal, scope: "gone" }));
    const next = models.generate("m", "hello", { maxTokens: 1, scope: "next" });

    expect(await gone).toMatchObject({ message: "gone" });
    expect(await next).toMatchObject({ usage: { completionTokens: 1, cachedTokens: 0 } });
    expect(promptTokens).toBeGreaterThan(800);
    expect(steps.map(({ prefillTokens }) => prefillTokens)).toEqual([128, (await next).usage.promptTokens]);
  });

  it("7: an unload never waits for ever behind a runaway generation", async () => {
    await using models = await startReal("report-7");
    const stream = models.stream("m", "on and on", { maxTokens: 2_000 });
    const reader = stream[Symbol.asyncIterator]();
    await reader.next();

    expect(await rejection(models.unload("m", { timeoutMs: 1 }))).toMatchObject({ code: "unload_timeout", leases: 1 });
    await models.unload("m", { timeoutMs: 1, force: true });

    expect(await rejection(stream.result)).toMatchObject({ code: "request_aborted", modelId: "m" });
    expect(models.info("m")).toBeUndefined();
    expect(models.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([0]);
  });

  it("7: nor behind one that does not hear its abort: what cannot be given back is named, and not used again", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("m", "a.gguf");
    const gate = backend.hold("token", "a.gguf", { ignoreAbort: true });
    const running = rejection(models.generate("m", "hello"));
    await gate.arrived();

    const unloading = rejection(models.unload("m", { timeoutMs: 10, force: true }));
    for (const passed of [10, 30_000]) {
      await settle();
      clock.increment(passed);
    }

    expect(await running).toMatchObject({ code: "request_aborted" });
    expect(await unloading).toMatchObject({ code: "dispose_failed", modelId: "m" });
    expect(await rejection(models.generate("m", "again"))).toMatchObject({ code: "not_ready", status: "error" });
    gate.open();
  });

  it("12: overload does not look like a fault of the server: each way to be refused has a code of its own", async () => {
    const { models, backend } = await startTestSupervisor({ memoryBudget: "1GiB", fake: FAKE });
    const start = backend.hold("start", "slow.gguf");
    const slow = rejection(models.load("slow", "slow.gguf"));
    await models.load("m", "a.gguf", { parallel: 1, maxQueue: 0 });
    const generation = backend.hold("generate", "a.gguf");
    const busy = rejection(models.generate("m", "hello"));
    await generation.arrived();
    await start.arrived();

    const overload = await rejection(models.generate("m", "one too many"));
    const notLoaded = await rejection(models.generate("nobody", "hello"));
    const loading = await rejection(models.generate("slow", "hello", { waitForLoad: false }));
    const memory = await rejection(models.load("big", "big.gguf"));
    await models.unload("slow");
    const cancelled = await slow;
    backend.crash("m");
    const crashed = await busy;
    generation.open();

    const told = [overload, notLoaded, loading, memory, cancelled, crashed].map((error) => {
      if (!isModelSupervisorError(error)) throw new TypeError(`Not a typed error: ${String(error)}`);
      return [error.code, error.retryable, Reflect.get(error, "modelId")];
    });
    expect(told).toEqual([
      ["queue_full", true, "m"],
      ["not_loaded", false, "nobody"],
      ["not_ready", true, "slow"],
      ["insufficient_memory", false, "big"],
      ["load_cancelled", true, "slow"],
      ["backing_crashed", true, "m"],
    ]);
  });
});

/** Models of 6 units and small ones, in a budget of 10; all are lazy, and idle ones may be evicted. */
async function startLazy(options: Partial<Parameters<typeof startTestSupervisor>[0]> = {}) {
  const sizes = { a: 6, b: 6, c: 6, x: 1, y: 1, embed: 1 };
  const started = await startTestSupervisor({
    memoryBudget: 10,
    overBudget: "evict-idle",
    fake: { models: Object.fromEntries(Object.entries(sizes).map(([id, ramBytes]) => [id, { ramBytes }])) },
    models: Object.keys(sizes).map((id) => ({ id, source: id, loadPolicy: "lazy" as const, ttlMs: 10_000 })),
    ...options,
  });
  await settle();
  return started;
}

/** How often a model was loaded. */
const loadsOf = (log: readonly string[], id: string) => log.filter((line) => line === `start ${id}`).length;

describe("reports about models that come and go", () => {
  it("1: a request for a model that is being evicted comes after the swap; nobody waits for ever", async () => {
    const { models, backend } = await startLazy();
    await models.generate("a", "hi");
    const disposal = backend.hold("dispose", "a");
    const order: string[] = [];
    const b = models.generate("b", "hi").then(() => order.push("b"));
    await disposal.arrived();
    const a = models.generate("a", "again").then(() => order.push("a"));
    await settle();

    disposal.open();
    await Promise.all([a, b]);

    expect(order).toEqual(["b", "a"]);
    expect((await models.generate("c", "hi")).modelId).toBe("c");
    expect(backend.maxLiveCopies).toBe(1);
  });

  it("3: clients that leave during a load never leave a second copy of the model", async () => {
    const { models, backend } = await startLazy();
    const gate = backend.hold("start", "a");
    for (let client = 0; client < 5; client++) {
      const controller = new AbortController();
      const request = rejection(models.generate("a", "hi", { signal: controller.signal }));
      await gate.arrived(client + 1);
      controller.abort(new Error("gone"));
      expect(await request).toMatchObject({ message: "gone" });
    }
    gate.open();

    expect((await models.generate("a", "hi")).modelId).toBe("a");

    expect([backend.maxLiveCopies, backend.liveBytes]).toEqual([1, 6]);
    await models.unload("a");
    expect(backend.liveBytes).toBe(0);
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
  });

  it("3: nor while an engine is slow to give up what nobody wants any more", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ id: "a", source: "a", loadPolicy: "lazy", warmUp: true }],
    });
    const warming = backend.hold("token", "a", { ignoreAbort: true });
    const controller = new AbortController();
    const request = rejection(models.generate("a", "hi", { signal: controller.signal }));
    await warming.arrived();
    controller.abort(new Error("gone"));
    await request;

    const next = models.generate("a", "hi");
    await settle();
    warming.open();

    expect((await next).modelId).toBe("a");
    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
    expect(backend.maxLiveCopies).toBe(1);
  });

  it("4: a request that needs less context, or says nothing about it, never loads the model again", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ id: "a", source: "a", loadPolicy: "lazy", contextSize: 1024 }],
    });

    for (const maxTokens of [511, undefined, 1_000, 1]) await models.generate("a", "hi", { maxTokens });
    // the context is of the load: a request cannot ask for another one
    const options = Object.fromEntries([["contextSize", 512]]);
    expect(await rejection(models.generate("a", "hi", options))).toMatchObject({ code: "invalid_option" });
    expect(await rejection(models.load("a"))).toMatchObject({ code: "already_loaded" });

    expect(backend.log).toEqual(["start a"]);
  });

  it("8: a small model never makes a large one go while there is room for both", async () => {
    const { models, backend } = await startLazy();
    let evictions = 0;
    models.on("model:unloading", () => (evictions += 1));

    for (let call = 0; call < 10; call++) {
      await models.generate("a", "hi");
      await models.generate("embed", "hi");
    }

    expect(evictions).toBe(0);
    expect(backend.log).toEqual(["start a", "start embed"]);
  });

  it("15: the TTL counts from the end of an answer, not from its start", async () => {
    const { models, backend, clock } = await startLazy();
    const reply = backend.hold("generate", "a");
    const long = models.generate("a", "hi");
    await reply.arrived();
    const pass = async (seconds: number) => {
      for (let second = 0; second < seconds; second++) {
        clock.increment(1_000);
        await settle();
      }
    };
    await pass(30);
    reply.open();
    await long;

    await pass(9);
    expect(models.isLoaded("a")).toBe(true);
    await pass(1);

    expect(clock.now()).toBe(40_000);
    expect(models.isLoaded("a")).toBe(false);
  });

  it("17: a load that nobody wants any more is aborted, and the next one begins", async () => {
    const { models, backend } = await startLazy();
    const gate = backend.hold("start", "a");
    const controller = new AbortController();
    const wrong = rejection(models.generate("a", "hi", { signal: controller.signal }));
    await gate.arrived();

    controller.abort(new Error("the wrong one"));
    expect(await wrong).toMatchObject({ message: "the wrong one" });

    // the gate is still closed: only the abort can have ended that load
    expect((await models.generate("b", "hi")).modelId).toBe("b");
    expect(backend.log).toEqual(["start b"]);
    expect(models.memory().devices[0]?.reservedBytes).toBe(6);
    expect(models.info("a")?.status).toBe("registered");
  });

  it("20: a model that was just loaded answers the request that it was loaded for before it goes", async () => {
    const { models, backend } = await startLazy();
    const gate = backend.hold("start", "a");
    const order: string[] = [];
    const a = models.generate("a", "hi").then(() => order.push("a"));
    await gate.arrived();
    const b = models.generate("b", "hi").then(() => order.push("b"));
    await settle();

    gate.open();
    await Promise.all([a, b]);

    expect(order).toEqual(["a", "b"]);
    expect(backend.log).toEqual(["start a", "dispose a", "start b"]);
    expect(backend.disposalsInFlight).toBe(0);
  });

  it("20: a request is never sent to a model that is stopping", async () => {
    const { models, backend } = await startLazy();
    await models.generate("a", "hi");
    const disposal = backend.hold("dispose", "a");
    const unloading = models.unload("a");
    await disposal.arrived();

    const request = models.generate("a", "again");
    await settle();
    expect(backend.requestsInFlight).toBe(0);
    disposal.open();
    await unloading;

    expect((await request).modelId).toBe("a");
    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
  });

  it("21: two loads that need the room of one idle model are both served", async () => {
    const { models, backend } = await startLazy();
    await models.generate("a", "hi");
    const disposal = backend.hold("dispose", "a");

    const requests = [models.generate("b", "hi"), models.generate("c", "hi")];
    await disposal.arrived();
    await settle();
    disposal.open();

    expect((await Promise.all(requests)).map(({ modelId }) => modelId)).toEqual(["b", "c"]);
    expect(backend.log).toEqual(["start a", "dispose a", "start b", "dispose b", "start c"]);
  });

  it("23: a request for another model never cuts off an answer that is being given", async () => {
    const { models, backend } = await startLazy();
    const tokens = backend.hold("token", "a");
    const answer = models.generate("a", "hi");
    await tokens.arrived();
    const request = models.generate("b", "hi");
    for (let word = 1; word < 8; word++) {
      tokens.pass();
      await tokens.arrived(word + 1);
      await settle();
      expect(models.info("b")?.status).toBe("loading");
    }
    tokens.open();

    expect((await answer).text).toBe("one two three four five six seven eight");
    expect((await request).modelId).toBe("b");
    expect(backend.disposalsInFlight).toBe(0);
  });

  it("25: who watches the models neither loads them nor keeps them awake", async () => {
    const { models, backend, clock } = await startLazy();
    await models.generate("a", "hi");
    const scrape = async () => {
      models.list();
      models.info("a");
      models.memory();
      models.tree();
      models.metrics();
      clock.increment(1_000);
      await settle();
    };

    for (let second = 0; second < 20; second++) await scrape();
    expect(models.info("a")?.status).toBe("registered");
    for (let second = 0; second < 5; second++) await scrape();

    expect(models.info("a")?.status).toBe("registered");
    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("29: a broken model is left alone after a few tries, and the others do not notice", async () => {
    const { models, backend, clock } = await startLazy();
    const tries = backend.hold("start", "x");
    tries.open();
    backend.fail("start", new Error("broken"), "x");
    const codes = new Set<unknown>();

    for (let request = 0; request < 100; request++) {
      codes.add(Object(await rejection(models.generate("x", "hi"))).code);
      if (request === 50) expect((await models.generate("y", "hi")).modelId).toBe("y");
      clock.increment(100);
    }

    expect([...codes]).toEqual(["load_failed"]);
    expect(tries.arrivals).toBeGreaterThanOrEqual(3);
    expect(tries.arrivals).toBeLessThanOrEqual(4);
    expect(loadsOf(backend.log, "y")).toBe(1);
    expect(backend.liveCopies).toBe(1);
    expect(await rejection(models.generate("x", "hi"))).toMatchObject({ retryAfterMs: expect.any(Number) });
  });
});

describe("faults of upstream's server", () => {
  it("28 of upstream's: an option of the load is refused in a request, by its own name", async () => {
    const { models } = await startTestSupervisor();
    await models.load("m", "a.gguf");

    // as a caller without types would pass them
    const withOption = (name: string, value: unknown) => Object.fromEntries([[name, value]]);
    expect(await rejection(models.generate("m", "hello", withOption("parallel", 2)))).toMatchObject({
      code: "invalid_option",
      option: "parallel",
    });
    expect(await rejection(models.embed("m", "hello", withOption("contextSize", 64)))).toMatchObject({
      code: "invalid_option",
      option: "contextSize",
    });
  });
});

const FAKE = { models: { "a.gguf": {}, "slow.gguf": {}, "big.gguf": { ramBytes: 2 ** 31 } } };
