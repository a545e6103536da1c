/** Creates the engine's contexts of a model, and tells what they hold. */
import type {
  LlamaContext,
  LlamaContextSequence,
  LlamaEmbeddingContext,
  LlamaModel,
  LlamaRankingContext,
} from "node-llama-cpp";
import type { ContextPlan } from "./context-plan.js";
import { guardSampling } from "./sampling-guard.js";

/** What a context holds, in bytes. */
export interface ContextBytes {
  readonly ram: number;
  readonly vram: number;
}

/*
 * None of these calls is given an abort signal: a context whose creation was aborted keeps a hold on the model that the
 * library never ends once the context has been garbage-collected, and the model's disposal then waits for ever
 * (measured on 3.21.1 and 3.22.1). So the creation is waited for, which takes milliseconds, and the context disposed.
 */

export async function createGenerationContext(model: LlamaModel, plan: ContextPlan): Promise<LlamaContext> {
  const context = await model.createContext({
    contextSize: plan.contextSize,
    sequences: plan.sequences,
    batchSize: plan.batchSize,
    threads: plan.threads,
    // Never a smaller context than was asked for and paid for.
    failedCreationRemedy: false,
  });
  try {
    guardSampling(context);
  } catch (error) {
    await context.dispose();
    throw error;
  }
  return context;
}

/** Sequences never shift: a full slot is an error, not a text that silently lost its beginning. */
const NO_CONTEXT_SHIFT = {
  strategy: (): never => {
    throw new Error("The slot is full, and its context must not be shifted");
  },
};

export function newSequence(context: LlamaContext): LlamaContextSequence {
  return context.getSequence({ contextShift: NO_CONTEXT_SHIFT });
}

export function createEmbeddingContext(model: LlamaModel, plan: ContextPlan): Promise<LlamaEmbeddingContext> {
  const { contextSize, batchSize, threads } = plan;
  return model.createEmbeddingContext({ contextSize, batchSize, threads });
}

export function createRankingContext(model: LlamaModel, plan: ContextPlan): Promise<LlamaRankingContext> {
  const { contextSize, batchSize, threads } = plan;
  return model.createRankingContext({ contextSize, batchSize, threads });
}

/**
 * What the engine says a context holds. Embedding and ranking contexts do not say it themselves; the context inside them
 * does. `undefined` where a later version hides it: then the estimate stands (it has been equal to the byte).
 */
export function contextBytes(
  context: LlamaContext | LlamaEmbeddingContext | LlamaRankingContext,
): ContextBytes | undefined {
  const inner: unknown = "_llamaContext" in context ? context._llamaContext : context;
  if (typeof inner !== "object" || inner === null || !("memoryUsage" in inner)) return undefined;
  const usage = inner.memoryUsage;
  if (typeof usage !== "object" || usage === null || !("ram" in usage) || !("vram" in usage)) return undefined;
  return typeof usage.ram === "number" && typeof usage.vram === "number"
    ? { ram: usage.ram, vram: usage.vram }
    : undefined;
}
