/** Loads a model and its contexts. Whatever fails on the way, all that was acquired is given back before it is said. */
import type { Llama, LlamaEmbeddingContext, LlamaModel, LlamaRankingContext } from "node-llama-cpp";
import { DisposeFailedError } from "../../errors.js";
import type { Backing, StartContext, StartSpec } from "../backend.js";
import { checkThreads, contextPlans, type ContextPlan } from "./context-plan.js";
import {
  contextBytes,
  createEmbeddingContext,
  createGenerationContext,
  createRankingContext,
  type ContextBytes,
} from "./contexts.js";
import { Embedder, Ranker, TransientGeneration } from "./direct-backing.js";
import { useThreads, withEngineLog } from "./engine.js";
import { NO_CONTEXT_SHIFT } from "./generation.js";
import { checkContextSize, type GgufModel } from "./gguf-file.js";
import { InProcessBacking, type BackingParts } from "./in-process-backing.js";
import { checkOptions, estimateContext, insights } from "./memory-estimate.js";
import { loadWeights } from "./native-load.js";
import { SlotServer } from "./server-backing.js";

/** @throws InvalidModelFileError, SourceUnavailableError, InvalidOptionError, the signal's reason, or the engine's error. */
export function startBacking(spec: StartSpec, model: GgufModel, context: StartContext, llama: Llama): Promise<Backing> {
  return withEngineLog(`Starting "${spec.modelId}"`, context.signal, () => acquire(spec, model, context, llama));
}

async function acquire(spec: StartSpec, model: GgufModel, context: StartContext, llama: Llama): Promise<Backing> {
  const { profile } = spec;
  const { signal } = context;
  checkContextSize(model, profile.contextSize);
  checkThreads(profile, context.maxThreads);
  const plans = contextPlans(model, profile);
  checkOptions(profile, await insights(model, llama), llama);

  const owned = new Owned();
  owned.add(useThreads(llama, context.maxThreads));
  try {
    const native = await loadWeights(llama, model, spec, context);
    owned.add(() => native.dispose());
    const backing = new InProcessBacking(spec, model, native, () => owned.dispose());
    const parts: Parts = { embedding: [], ranking: [] };
    for (const plan of plans) {
      signal.throwIfAborted();
      const estimate = async (): Promise<ContextBytes> => {
        const need = await estimateContext(model, profile, plan, spec.gpuLayers, llama);
        return { ram: need.cpuRam, vram: need.gpuVram };
      };
      const made = { spec, native, owned, backing };
      backing.hold(await withEngineLog("Creating a context", signal, () => addPart(parts, plan, estimate, made)));
    }
    signal.throwIfAborted();
    return backing.open(serve(spec, parts));
  } catch (error) {
    // At once, while the engine still knows of every context whose creation failed: later the model could not be disposed.
    try {
      await owned.dispose();
    } catch (fault) {
      const causes = new AggregateError([error, fault], "The load failed, and so did giving back what it took");
      throw new DisposeFailedError(spec.modelId, "giving back a failed load failed", causes);
    }
    throw error;
  }
}

/** What has been made so far for the backing. */
interface Parts {
  generation?: NonNullable<BackingParts["generation"]>;
  readonly embedding: LlamaEmbeddingContext[];
  readonly ranking: LlamaRankingContext[];
}

function serve({ modelId, profile }: StartSpec, { generation, embedding, ranking }: Parts): BackingParts {
  const limits = { modelId, contextSize: profile.contextSize, maxQueue: profile.maxQueue };
  return {
    ...(generation && { generation }),
    ...(embedding.length > 0 && { embedder: new Embedder(embedding, limits) }),
    ...(ranking.length > 0 && { ranker: new Ranker(ranking, limits) }),
  };
}

interface PartContext {
  readonly spec: StartSpec;
  readonly native: LlamaModel;
  readonly owned: Owned;
  readonly backing: InProcessBacking;
}

/** Creates one context, and returns what it holds. */
async function addPart(
  parts: Parts,
  plan: ContextPlan,
  estimate: () => Promise<ContextBytes>,
  { spec, native, owned, backing }: PartContext,
): Promise<ContextBytes> {
  const { modelId, profile } = spec;
  const onBroken = (cause: unknown) => backing.crash(cause);
  switch (plan.kind) {
    case "slots": {
      const context = await createGenerationContext(native, plan);
      owned.add(() => context.dispose());
      backing.watch(context.onDispose);
      parts.generation = new SlotServer({
        modelId,
        slots: plan.sequences,
        maxQueue: profile.maxQueue,
        batchSize: plan.batchSize,
        detokenizer: native,
        newSequence: () => context.getSequence({ contextShift: NO_CONTEXT_SHIFT }),
        onBroken,
      });
      return contextBytes(context) ?? estimate();
    }
    case "transient":
      parts.generation = new TransientGeneration({
        modelId,
        model: native,
        maxQueue: profile.maxQueue,
        batchSize: plan.batchSize,
        createContext: () => createGenerationContext(native, plan),
        onBroken,
      });
      return estimate();
    case "embedding": {
      const context = await createEmbeddingContext(native, plan);
      owned.add(() => context.dispose());
      backing.watch(context.onDispose);
      parts.embedding.push(context);
      return contextBytes(context) ?? estimate();
    }
    case "ranking": {
      const context = await createRankingContext(native, plan);
      owned.add(() => context.dispose());
      backing.watch(context.onDispose);
      parts.ranking.push(context);
      return contextBytes(context) ?? estimate();
    }
  }
}

/** What has been acquired; given back once, last first, and all of it even if a part fails. */
class Owned {
  readonly #disposals: (() => Promise<void> | void)[] = [];
  #ending: Promise<void> | undefined;

  add(dispose: () => Promise<void> | void): void {
    this.#disposals.push(dispose);
  }

  /** A second call joins the first: the disposal of a context is told to its backing, which ends everything as well. */
  dispose(): Promise<void> {
    this.#ending ??= this.#disposeAll();
    return this.#ending;
  }

  async #disposeAll(): Promise<void> {
    const errors: unknown[] = [];
    for (let dispose = this.#disposals.pop(); dispose !== undefined; dispose = this.#disposals.pop()) {
      try {
        await dispose();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0)
      throw errors.length === 1 ? errors[0] : new AggregateError(errors, "Parts of the model could not be disposed");
  }
}
