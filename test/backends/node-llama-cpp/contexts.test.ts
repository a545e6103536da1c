import v8 from "node:v8";
import vm from "node:vm";
import { beforeAll, describe, expect, it } from "vitest";
import {
  contextBytes,
  createEmbeddingContext,
  createGenerationContext,
  withContextDefaults,
} from "../../../src/backends/node-llama-cpp/contexts.js";
import type { ContextPlan } from "../../../src/backends/node-llama-cpp/context-plan.js";
import { makeRandomModel } from "../../../src/testing/index.js";
import { useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const at = useTemporaryFolder();
let random = "";

beforeAll(async () => {
  [random] = await makeRandomModel(at("random.gguf"), { preset: "small" });
});

const plan: ContextPlan = { kind: "slots", contextSize: 64, sequences: 1, batchSize: 64, threads: 1 };

/** What nobody holds any more is gone when it resolves. */
async function collectGarbage(): Promise<void> {
  v8.setFlagsFromString("--expose-gc");
  const collect: unknown = vm.runInNewContext("gc");
  for (let round = 0; round < 3; round++) {
    if (typeof collect === "function") collect();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

describe("a context that could not be created", () => {
  it("does not keep its model from being disposed, nor the others from going on", async () => {
    const outcome = await withModel(random, async (model) => {
      const other = await createGenerationContext(model, plan);
      // the engine's limit is 256
      await expect(createGenerationContext(model, { ...plan, sequences: 257 })).rejects.toThrow(
        "Failed to create context",
      );
      await collectGarbage();

      const sequence = other.getSequence();
      await sequence.evaluateWithoutGeneratingNewTokens(model.tokenize("hello"));
      return { tokens: sequence.nextTokenIndex, isDisposed: other.disposed };
    });

    expect(outcome).toEqual({ tokens: expect.any(Number), isDisposed: false });
    expect(outcome.tokens).toBeGreaterThan(0);
  });
});

describe("a model as one id uses it", () => {
  it("gives its contexts that id's options, and leaves the model as it is", async () => {
    await withModel(random, async (model) => {
      const usual = await createGenerationContext(model, plan);
      const own = await withContextDefaults(model, { flashAttention: true, kvCacheType: "q8_0" });
      const context = await createGenerationContext(own, plan);
      const embedding = await createEmbeddingContext(own, plan);
      const plain = await createEmbeddingContext(model, plan);

      expect(context.flashAttention).toBe(true);
      expect(context.kvCacheKeyType).not.toBe(usual.kvCacheKeyType);
      expect(contextBytes(embedding)?.ram).toBeLessThan(contextBytes(plain)?.ram ?? 0);
    });
  });
});
