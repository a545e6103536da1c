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
