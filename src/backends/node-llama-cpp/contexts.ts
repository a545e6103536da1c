/** Creates the engine's contexts of a model, and tells what they hold. */
import type {
  LlamaContext,
  LlamaContextSequence,
  LlamaEmbeddingContext,
  LlamaModel,
  LlamaRankingContext,
} from "node-llama-cpp";
import type { EngineOptions } from "../backend.js";
import type { ContextPlan } from "./context-plan.js";
import { kvTypeOf } from "./kv-type.js";
import { guardSampling } from "./sampling-guard.js";

/** What a context holds, in bytes. */
export interface ContextBytes {
  readonly ram: number;
  readonly vram: number;
}

/**
 * The model as one id uses it: contexts that are made from it have these options. The library takes them from the model, and
 * for embedding contexts from nowhere else, while the model itself is shared with others.
 */
export async function withContextDefaults(model: LlamaModel, options: EngineOptions): Promise<LlamaModel> {
  const { flashAttention } = options;
  const kvCacheType = await kvTypeOf(options);
  return variantOf(model, {
    ...(flashAttention !== undefined && { defaultContextFlashAttention: flashAttention }),
    ...(kvCacheType !== undefined && {
      defaultContextKvCacheKeyType: kvCacheType,
      defaultContextKvCacheValueType: kvCacheType,
    }),
  });
}

/** The same native model in everything but some properties. */
function variantOf(model: LlamaModel, properties: Readonly<Record<string, unknown>>): LlamaModel {
  const variant: LlamaModel = Object.create(model);
  for (const [name, value] of Object.entries(properties)) Object.defineProperty(variant, name, { value });
  return variant;
}

/**
 * A context whose creation fails, or is aborted, keeps a hold on the model, and the library forgets it: the model's disposal
 * then waits for ever, at the latest once the context has been garbage-collected (measured on 3.21.1 and 3.22.1). What the
 * library would do with it at the disposal of the model is done at once, for others go on using the model. For the same reason
 * none of these calls is given an abort signal: a creation is waited for, which takes milliseconds, and the context disposed.
 */
async function create<Context>(model: LlamaModel, make: (model: LlamaModel) => Promise<Context>): Promise<Context> {
  const disposals: (() => void)[] = [];
  const createListener = (dispose: () => void) => {
    disposals.push(dispose);
    return model.onDispose.createListener(dispose);
  };
  try {
    return await make(variantOf(model, { onDispose: { createListener } }));
  } catch (error) {
    for (const dispose of disposals) dispose();
    throw error;
  }
}

export async function createGenerationContext(model: LlamaModel, plan: ContextPlan): Promise<LlamaContext> {
  const context = await create(model, (variant) =>
    variant.createContext({
      contextSize: plan.contextSize,
      sequences: plan.sequences,
      batchSize: plan.batchSize,
      threads: plan.threads,
      // Never a smaller context than was asked for and paid for.
      failedCreationRemedy: false,
    }),
  );
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
  return create(model, (variant) => variant.createEmbeddingContext({ contextSize, batchSize, threads }));
}

export function createRankingContext(model: LlamaModel, plan: ContextPlan): Promise<LlamaRankingContext> {
  const { contextSize, batchSize, threads } = plan;
  return create(model, (variant) => variant.createRankingContext({ contextSize, batchSize, threads }));
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
