import { copyFile, symlink, utimes } from "node:fs/promises";
import { LlamaModel } from "node-llama-cpp";
import { beforeAll, describe, expect, it, onTestFinished, vi } from "vitest";
import { sharedEngine } from "../../src/backends/node-llama-cpp/engine.js";
import { ModelSupervisor, nodeLlamaCpp } from "../../src/index.js";
import type { LoadOptions, ModelManager, ModelSupervisorOptions } from "../../src/index.js";
import { makeRandomModel, makeRecallModel, recallKeys } from "../../src/testing/index.js";
import { useTemporaryFolder } from "../support/bare-engine.js";

const file = useTemporaryFolder();
const greedy = { temperature: 0 } as const;
const options: LoadOptions = { contextSize: 128, parallel: 2 };
let started = 0;

beforeAll(async () => {
  await makeRecallModel(file("recall.gguf"));
  await makeRandomModel(file("random.gguf"));
});

async function startModels(rest: ModelSupervisorOptions = {}): Promise<ModelManager> {
  const models = await ModelSupervisor.start({
    name: `shared-${++started}`,
    maxThreads: 1,
    memoryBudget: "unlimited",
    // nothing is measured: what is loaded does not depend on the machine
    backend: nodeLlamaCpp({ calibrationFile: false }),
    ...rest,
  });
  onTestFinished(() => models.close({ timeoutMs: 0 }));
  return models;
}

const engine = () => sharedEngine({ gpu: "auto", build: "never" });

/** What the engine says it holds for all models. */
const held = async () => (await (await engine()).getLlamaMemoryUsage()).cpuRam;

const reserved = (models: ModelManager) => models.memory().devices.map(({ reservedBytes }) => reservedBytes);

async function native(models: ModelManager, id: string): Promise<unknown> {
  using lease = await models.acquire(id);
  return lease.native;
}

/** What the model was told, and a proof that it was this model's context: another key each time. */
async function recalls(models: ModelManager, id: string, key: string): Promise<void> {
  const { text } = await models.generate(id, `remember the word ${key} please answer`, greedy);
  expect(text.trim()).toBe(`your word is ${key}`);
}

describe("two ids of one file", () => {
  it("hold its weights once, answer exactly, and give back what is their own, the last one all of it", async () => {
    const models = await startModels();
    await models.load("a", file("recall.gguf"), options);
    const alone = await held();
    expect(reserved(models)).toEqual([alone]);

    const planned = await models.plan(file("recall.gguf"), { ...options, contextSize: 256 });
    await models.load("b", file("recall.gguf"), { ...options, contextSize: 256 });
    const both = await held();

    expect(reserved(models)).toEqual([both]);
    expect(both).toBe(alone + planned.requiredBytes);
    expect(planned.requiredBytes).toBeLessThan(planned.placement.ram ?? 0);
    expect(models.info("b")?.placement).toEqual(planned.placement);
    await Promise.all(recallKeys.slice(0, 8).map((key, index) => recalls(models, index % 2 === 0 ? "a" : "b", key)));

    await models.unload("a");
    expect(reserved(models)).toEqual([planned.placement.ram]);
    expect(await held()).toBe(planned.placement.ram);
    await recalls(models, "b", "amber");

    await models.unload("b");
    expect(reserved(models)).toEqual([0]);
    expect(await held()).toBe(0);
  });

  it("that are loaded at once are one native load", async () => {
    const models = await startModels();
    const loadModel = vi.spyOn(await engine(), "loadModel");
    onTestFinished(() => loadModel.mockRestore());

    await Promise.all([
      models.load("a", file("recall.gguf"), options),
      models.load("b", file("recall.gguf"), options),
      models.load("c", file("random.gguf"), options),
    ]);

    expect(loadModel).toHaveBeenCalledTimes(2);
    expect(await native(models, "a")).toBe(await native(models, "b"));
    expect(await native(models, "a")).not.toBe(await native(models, "c"));
    expect(reserved(models)).toEqual([await held()]);
  });

  it("share also by another name of the file, and with other options of their contexts", async () => {
    const models = await startModels();
    await symlink(file("random.gguf"), file("link.gguf"));
    await models.load("a", file("random.gguf"), options);

    await models.load("b", file("link.gguf"), { contextSize: 64, mode: "direct", capabilities: ["embed"] });
    await models.load("c", file("random.gguf"), { ...options, flashAttention: false, batchSize: 32 });

    const first = await native(models, "a");
    expect([await native(models, "b"), await native(models, "c")]).toEqual([first, first]);
    expect(reserved(models)).toEqual([await held()]);
    expect((await models.embed("b", "hello")).embedding).not.toContain(Number.NaN);
  });

  it("do not share when the file has changed in between, or when its tensors are to be checked", async () => {
    const models = await startModels();
    await copyFile(file("random.gguf"), file("changing.gguf"));
    await models.load("a", file("changing.gguf"), options);
    const alone = await held();

    await models.load("checked", file("changing.gguf"), { ...options, checkTensors: true });
    await utimes(file("changing.gguf"), 1, 1);
    await models.load("changed", file("changing.gguf"), options);

    expect(await held()).toBe(3 * alone);
    expect(reserved(models)).toEqual([3 * alone]);
  });

  it("fit into a budget that two copies do not fit into", async () => {
    const models = await startModels();
    const { placement, requiredBytes } = await models.plan(file("random.gguf"), options);
    const tight = await startModels({ memoryBudget: Math.floor(requiredBytes * 1.9) });
    await copyFile(file("random.gguf"), file("copy.gguf"));
    await tight.load("a", file("random.gguf"), options);

    await expect(tight.load("copy", file("copy.gguf"), options)).rejects.toMatchObject({
      code: "insufficient_memory",
      requiredBytes: placement.ram,
    });
    await expect(tight.load("b", file("random.gguf"), options)).resolves.toMatchObject({ status: "ready" });
  });
});

describe("a model whose weights are another's as well", () => {
  it("comes and goes while the other one answers", async () => {
    const models = await startModels();
    await models.load("a", file("random.gguf"), { contextSize: 2048, parallel: 1 });
    const alone = (await models.generate("a", "the cat", { ...greedy, maxTokens: 600 })).text;
    const shared = await native(models, "a");
    const listeners = () => (shared instanceof LlamaModel ? shared.onDispose.listenerCount : NaN);
    const before = listeners();
    const running = models.generate("a", "the cat", { ...greedy, maxTokens: 600 });
    const end = new AbortController();
    void running.finally(() => end.abort());

    let rounds = 0;
    for (; !end.signal.aborted; rounds++) {
      await models.load("b", file("random.gguf"), { contextSize: 64, capabilities: ["embed"] });
      const texts = Array.from({ length: 8 }, (_, index) => `text number ${index}`);
      const embedding = models.embedMany("b", texts).catch(() => undefined);
      await models.unload("b", { timeoutMs: 0, force: true });
      await embedding;
    }

    expect(rounds).toBeGreaterThan(2);
    expect(listeners()).toBe(before);
    expect((await running).text).toBe(alone);
  });

  it("is loaded when the other one, whose load it joined, is cancelled", async () => {
    const models = await startModels();
    const leaving = new AbortController();
    const reason = new Error("changed my mind");
    const loadModel = vi.spyOn(await engine(), "loadModel");
    onTestFinished(() => loadModel.mockRestore());

    const one = models.load("a", file("recall.gguf"), {
      ...options,
      signal: leaving.signal,
      onProgress: ({ phase, fraction }) => {
        if (phase === "start" && fraction > 0) leaving.abort(reason);
      },
    });
    const other = models.load("b", file("recall.gguf"), options);

    await expect(one).rejects.toBe(reason);
    await other;
    expect(loadModel).toHaveBeenCalledTimes(1);
    await recalls(models, "b", "basil");
    expect(reserved(models)).toEqual([models.info("b")?.placement.ram]);
    await models.unload("b");
    expect(await held()).toBe(0);
  });

  it("is loaded anew when the last one is just being unloaded", async () => {
    const models = await startModels();
    await models.load("a", file("recall.gguf"), options);

    for (const [gone, next] of [
      ["a", "b"],
      ["b", "a"],
      ["a", "b"],
    ] as const) {
      const unloading = models.unload(gone);
      await Promise.all([unloading, models.load(next, file("recall.gguf"), options)]);
      await recalls(models, next, "coral");
      expect(reserved(models)).toEqual([await held()]);
    }
  });
});
