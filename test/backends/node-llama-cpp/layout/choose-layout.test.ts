import type { LlamaModel } from "node-llama-cpp";
import { beforeAll, describe, expect, it, onTestFinished } from "vitest";
import type { ModelProfile } from "../../../../src/backends/backend.js";
import { beginEvaluating } from "../../../../src/backends/node-llama-cpp/engine-activity.js";
import { sharedEngine } from "../../../../src/backends/node-llama-cpp/engine.js";
import { resolveGgufModel, type GgufModel } from "../../../../src/backends/node-llama-cpp/gguf-file.js";
import { CalibrationFile } from "../../../../src/backends/node-llama-cpp/layout/calibration-file.js";
import type { Calibration, Spread } from "../../../../src/backends/node-llama-cpp/layout/layout.js";
import { estimateMemory } from "../../../../src/backends/node-llama-cpp/memory-estimate.js";
import { SharedWeights } from "../../../../src/backends/node-llama-cpp/shared-weights.js";
import { startBacking } from "../../../../src/backends/node-llama-cpp/start.js";
import { makeRandomModel } from "../../../../src/testing/index.js";
import { useTemporaryFolder } from "../../../support/bare-engine.js";
import { method, never, profileOf, request, GREEDY } from "../engine-fixture.js";

const at = useTemporaryFolder();
let model: GgufModel;

beforeAll(async () => {
  const [file] = await makeRandomModel(at("layout.gguf"));
  model = await resolveGgufModel(file, {}, never);
});

/** A memory that holds this, or nothing. */
class Memory extends CalibrationFile {
  readonly remembered: Calibration[] = [];
  readonly #spread: Spread | undefined;
  readonly #onRecall: () => void;

  constructor(spread: Spread | undefined, onRecall: () => void = () => undefined) {
    super(at("never-written.json"));
    this.#spread = spread;
    this.#onRecall = onRecall;
  }

  override async recall(): Promise<Calibration | undefined> {
    this.#onRecall();
    return this.#spread && { spread: this.#spread, steps: [], measurements: [] };
  }

  override async remember(_key: unknown, found: Calibration): Promise<void> {
    this.remembered.push(found);
  }
}

async function start(profile: ModelProfile, memory: Memory, signal = never) {
  const llama = await sharedEngine({ gpu: "auto", build: "never" });
  const parts = { llama, weights: new SharedWeights<LlamaModel>(), memory };
  const { gpuLayers, ramBytes } = await estimateMemory(model, profile, parts);
  const spec = { modelId: "m", incarnation: 1, model, profile, gpuLayers };
  const backing = await startBacking(spec, model, { signal, maxThreads: profile.threads }, parts);
  onTestFinished(() => backing.dispose());
  return { backing, ramBytes };
}

describe("a load", () => {
  it.each([1, 2, 4])("holds what was planned, with %i contexts, and each of them answers", async (contexts) => {
    const profile = profileOf(model, { parallel: 5, threads: 4, decodeWidth: 5 });

    const { backing, ramBytes } = await start(profile, new Memory({ contexts, threads: 1 }));
    const generate = () => method(backing, "generate")("hello", { ...GREEDY, maxTokens: 2 }, request());
    const answers = await Promise.all(Array.from({ length: 5 }, generate));

    expect(backing.layout).toMatchObject({ contexts, threadsPerContext: 1, chosenBy: "remembered" });
    expect(Math.abs(backing.memory().ramBytes - ramBytes)).toBeLessThan(ramBytes * 0.01);
    expect(answers.map(({ usage }) => usage.completionTokens)).toEqual([2, 2, 2, 2, 2]);
  });

  it("measures again where what is remembered could not be chosen", async () => {
    const memory = new Memory({ contexts: 3, threads: 1 });

    const { backing } = await start(profileOf(model, { parallel: 6 }), memory);

    expect(backing.layout).toMatchObject({ contexts: 1, chosenBy: "measured" });
    expect(memory.remembered).toHaveLength(1);
  });

  it("takes the default, and remembers nothing, when the engine gets busy while it measures", async () => {
    let recalls = 0;
    // the first is that of the estimate
    const memory = new Memory(undefined, () => {
      if (++recalls === 2) setImmediate(() => onTestFinished(beginEvaluating()));
    });

    const { backing } = await start(profileOf(model, { parallel: 6, threads: 2 }), memory);

    expect(backing.layout).toMatchObject({ contexts: 1, threadsPerContext: 1, chosenBy: "default" });
    expect(memory.remembered).toEqual([]);
  });

  it("measures no more once it is aborted, and rejects with the reason", async () => {
    const controller = new AbortController();
    const reason = new Error("no longer wanted");
    let recalls = 0;
    // the first is that of the estimate
    const memory = new Memory(undefined, () => {
      if (++recalls === 2) setImmediate(() => controller.abort(reason));
    });

    await expect(start(profileOf(model, { parallel: 6, threads: 2 }), memory, controller.signal)).rejects.toBe(reason);

    expect(memory.remembered).toEqual([]);
  });
});
