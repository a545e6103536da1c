import { LlamaContext, LlamaContextSequence, LlamaEmbeddingContext, LlamaModel } from "node-llama-cpp";
import { afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { sharedEngine } from "../../src/backends/node-llama-cpp/engine.js";
import { ModelSupervisor, nodeLlamaCpp } from "../../src/index.js";
import type { Backend, ModelManager, ModelOptions, ModelSupervisorOptions } from "../../src/index.js";
import { makeRandomModel, makeRecallModel, recallKeys, SimulatedClock } from "../../src/testing/index.js";
import { useTemporaryFolder } from "../support/bare-engine.js";
import { rejection } from "../support/test-supervisor.js";

const TTL_MS = 10_000;
const SWEEP_MS = 1_000;
const greedy = { temperature: 0 } as const;
const file = useTemporaryFolder();

beforeAll(async () => {
  await makeRecallModel(file("recall.gguf"));
  await makeRandomModel(file("random.gguf"), { preset: "tiny" });
});

let started = 0;

/** The real engine with a clock that stands still, and one lazy model. */
async function startLazy(
  source: string,
  options: ModelOptions,
  more: ModelSupervisorOptions = {},
): Promise<{ models: ModelManager; clock: SimulatedClock }> {
  const clock = new SimulatedClock();
  const models = await ModelSupervisor.start({
    name: `lazy-${++started}`,
    maxThreads: 1,
    sweepIntervalMs: SWEEP_MS,
    clock,
    ...more,
  });
  onTestFinished(() => models.close({ timeoutMs: 0 }));
  await models.register("m", source, { ttlMs: TTL_MS, ...options });
  return { models, clock };
}

const nextUnload = (models: ModelManager) => new Promise((resolve) => models.once("model:unloaded", resolve));

describe("27: a burst of first requests", () => {
  /** The real backend, and how many copies it has made and had alive at most. */
  function countingCopies(): { backend: Backend; copies: { made: number; alive: number; mostAlive: number } } {
    const real = nodeLlamaCpp({ calibrationFile: false });
    const copies = { made: 0, alive: 0, mostAlive: 0 };
    const start: Backend["start"] = async (spec, context) => {
      copies.made++;
      copies.mostAlive = Math.max(copies.mostAlive, ++copies.alive);
      const backing = await real.start(spec, context);
      void backing.exited.then(() => copies.alive--);
      return backing;
    };
    return { backend: { ...real, start }, copies };
  }

  const OPTIONS = { contextSize: 128, parallel: 2 } as const;
  const keys = recallKeys.slice(0, 8);
  const answers = keys.map((key) => `your word is ${key}`);
  const burst = async (models: ModelManager) =>
    (await Promise.all(keys.map((key) => models.generate("m", `the word ${key} please`, greedy)))).map(({ text }) =>
      text.trim(),
    );
  const bytesInEngine = async () =>
    (await (await sharedEngine({ gpu: "auto", build: "never" })).getLlamaMemoryUsage()).cpuRam;

  it("makes one copy, and so does another burst after its TTL", async () => {
    const { backend, copies } = countingCopies();
    const { models, clock } = await startLazy(file("recall.gguf"), OPTIONS, { backend });

    expect(await burst(models)).toEqual(answers);
    expect(copies).toEqual({ made: 1, alive: 1, mostAlive: 1 });
    expect(await bytesInEngine()).toBe(models.info("m")?.placement?.ram);
    const gone = nextUnload(models);
    clock.increment(TTL_MS + SWEEP_MS);
    expect(await gone).toMatchObject({ reason: "ttl" });
    expect(await bytesInEngine()).toBe(0);
    expect(await burst(models)).toEqual(answers);

    expect(copies).toEqual({ made: 2, alive: 1, mostAlive: 1 });
    expect(await bytesInEngine()).toBe(models.info("m")?.placement?.ram);
  });

  it("that comes while the TTL takes the first copy away waits for that, and makes one", async () => {
    const { backend, copies } = countingCopies();
    const { models, clock } = await startLazy(file("recall.gguf"), OPTIONS, { backend });
    await burst(models);

    clock.increment(TTL_MS + SWEEP_MS);
    expect(models.info("m")?.status).toBe("unloading");
    expect(await burst(models)).toEqual(answers);

    expect(copies).toEqual({ made: 2, alive: 1, mostAlive: 1 });
  });

  it("makes as many copies in the library alone as there are loads: the control", async () => {
    const llama = await sharedEngine({ gpu: "auto", build: "never" });
    const load = () => llama.loadModel({ modelPath: file("recall.gguf"), gpuLayers: 0 });
    const one = await load();
    const bytesOfOne = await bytesInEngine();

    const others = await Promise.all([load(), load()]);

    expect(await bytesInEngine()).toBe(3 * bytesOfOne);
    await Promise.all([one, ...others].map((model) => model.dispose()));
  });
});

describe("30: nothing is disposed under work", () => {
  /** What runs in the engine now. */
  const running: string[] = [];
  /** What was disposed, and what ran then. */
  const disposals: { readonly what: string; readonly beside: readonly string[] }[] = [];

  /** Called when an embedding begins. */
  let hearEmbedding = () => {};

  async function during<T>(what: string, work: Promise<T>): Promise<T> {
    running.push(what);
    try {
      return await work;
    } finally {
      running.splice(running.indexOf(what), 1);
    }
  }

  beforeEach(() => {
    disposals.length = 0;
    hearEmbedding = () => {};
    const { getEmbeddingFor, dispose: disposeEmbedding } = LlamaEmbeddingContext.prototype;
    const { evaluateWithoutGeneratingNewTokens: prefill } = LlamaContextSequence.prototype;
    const { dispose: disposeContext } = LlamaContext.prototype;
    const { dispose: disposeModel } = LlamaModel.prototype;
    vi.spyOn(LlamaEmbeddingContext.prototype, "getEmbeddingFor").mockImplementation(function (
      this: LlamaEmbeddingContext,
      ...args
    ) {
      hearEmbedding();
      return during("embedding", getEmbeddingFor.apply(this, args));
    });
    vi.spyOn(LlamaContextSequence.prototype, "evaluateWithoutGeneratingNewTokens").mockImplementation(function (
      this: LlamaContextSequence,
      ...args
    ) {
      return during("prefill", prefill.apply(this, args));
    });
    const noting = (what: string) => disposals.push({ what, beside: [...running] });
    vi.spyOn(LlamaEmbeddingContext.prototype, "dispose").mockImplementation(function (this: LlamaEmbeddingContext) {
      noting("embedding context");
      return disposeEmbedding.apply(this);
    });
    vi.spyOn(LlamaContext.prototype, "dispose").mockImplementation(function (this: LlamaContext) {
      noting("context");
      return disposeContext.apply(this);
    });
    vi.spyOn(LlamaModel.prototype, "dispose").mockImplementation(function (this: LlamaModel) {
      noting("model");
      return disposeModel.apply(this);
    });
  });

  afterEach(() => {
    vi.restoreAllMocks();
  });

  const OPTIONS = { mode: "server", capabilities: ["generate", "embed"], contextSize: 2048, parallel: 2 } as const;
  const texts = Array.from({ length: 12 }, (_, index) => `text number ${index}`);
  const longPrompt = "the cat is blue and the dog ".repeat(100);

  /** A generation, a long prompt and embeddings, all at once; tells when each of them is over. */
  async function startWork(models: ModelManager, over: string[]) {
    const note = (what: string) => () => void over.push(what);
    const stream = models.stream("m", "the cat", { ...greedy, maxTokens: 60 });
    const generation = stream.result.finally(note("generation"));
    const prefill = models.generate("m", longPrompt, { ...greedy, maxTokens: 1 }).finally(note("prefill"));
    const embeddings = models.embedMany("m", texts).finally(note("embeddings"));
    return { stream, generation, prefill, embeddings };
  }

  function expectQuietDisposals(): void {
    expect(disposals.map(({ what }) => what).toSorted()).toEqual(["context", "context", "embedding context", "model"]);
    expect(disposals.filter(({ beside }) => beside.length > 0)).toEqual([]);
  }

  it("by a TTL that runs out many times meanwhile; it counts from the end of the last of them", async () => {
    const { models, clock } = await startLazy(file("random.gguf"), OPTIONS);
    const statuses = new Set<string | undefined>();
    const over: string[] = [];
    const { stream, generation, prefill, embeddings } = await startWork(models, over);
    const gone = nextUnload(models);

    for await (const _ of stream) {
      clock.increment(TTL_MS + SWEEP_MS);
      statuses.add(models.info("m")?.status);
    }
    await Promise.all([generation, prefill, embeddings]);
    clock.increment(TTL_MS - SWEEP_MS);
    expect([...statuses, models.info("m")?.status]).toEqual(["ready", "ready"]);
    expect(disposals).toEqual([]);
    clock.increment(2 * SWEEP_MS);

    expect(await gone).toMatchObject({ reason: "ttl" });
    expectQuietDisposals();
  });

  it("by an unload, which waits for all of it", async () => {
    const { models } = await startLazy(file("random.gguf"), OPTIONS);
    await models.load("m");
    const over: string[] = [];
    const { generation, prefill, embeddings } = await startWork(models, over);

    const unloading = models.unload("m").finally(() => void over.push("unload"));
    expect(models.info("m")).toMatchObject({ status: "unloading", leases: 3 });
    await unloading;

    expect(over.at(-1)).toBe("unload");
    expect((await generation).usage.completionTokens).toBe(60);
    expect((await prefill).usage.completionTokens).toBe(1);
    expect((await embeddings).embeddings).toHaveLength(texts.length);
    expectQuietDisposals();
  });

  it("by a forced unload, which aborts it and waits until the engine is quiet", async () => {
    const { models } = await startLazy(file("random.gguf"), OPTIONS);
    await models.load("m");
    const { generation, prefill, embeddings } = await startWork(models, []);
    const failures = [generation, prefill, embeddings].map((work) => rejection(work));
    await new Promise<void>((resolve) => {
      hearEmbedding = resolve;
    });

    await models.unload("m", { force: true });

    for (const failure of await Promise.all(failures)) expect(failure).toMatchObject({ code: "request_aborted" });
    expectQuietDisposals();
  });

  it("nor by an eviction: it comes when the last of it has ended", async () => {
    const { models } = await startLazy(file("random.gguf"), OPTIONS, { overBudget: "evict-idle" });
    await models.register("other", file("recall.gguf"), { contextSize: 128 });
    const { requiredBytes } = await models.plan(file("random.gguf"), OPTIONS);
    await models.load("m");
    await models.setMemoryBudget(requiredBytes);
    const over: string[] = [];
    const { generation, prefill, embeddings } = await startWork(models, over);

    const other = models.generate("other", "the word amber", greedy).finally(() => void over.push("other"));

    expect((await other).text.trim()).toBe("your word is amber");
    expect(over.at(-1)).toBe("other");
    await Promise.all([generation, prefill, embeddings]);
    expectQuietDisposals();
  });
});
