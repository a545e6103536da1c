/** Loads a model and its contexts. Whatever fails on the way, all that was acquired is given back before it is said. */
import type { LlamaEmbeddingContext, LlamaModel, LlamaRankingContext } from "node-llama-cpp";
import { DisposeFailedError } from "../../errors.js";
import type { Backing, StartContext, StartSpec } from "../backend.js";
import { checkThreads, contextPlans, generates, type ContextPlan } from "./context-plan.js";
import {
  contextBytes,
  createEmbeddingContext,
  createGenerationContext,
  createRankingContext,
  newSequence,
  withContextDefaults,
  type ContextBytes,
} from "./contexts.js";
import { Embedder, Ranker, TransientGeneration } from "./direct-backing.js";
import { useThreads, withEngineLog } from "./engine.js";
import type { EngineParts } from "./engine-parts.js";
import { checkContextSize, type GgufModel } from "./gguf-file.js";
import { InProcessBacking, type BackingParts } from "./in-process-backing.js";
import { checkOptions, estimateContext, insights, wantedWeights } from "./memory-estimate.js";
import { loadWeights } from "./native-load.js";
import { chooseLayout, type ChosenLayout } from "./layout/choose-layout.js";
import type { SlotGroupOptions } from "./slot-group.js";
import { SlotServer } from "./slot-server.js";

/** @throws InvalidModelFileError, SourceUnavailableError, InvalidOptionError, the signal's reason, or the engine's error. */
export function startBacking(
  spec: StartSpec,
  model: GgufModel,
  context: StartContext,
  parts: EngineParts,
): Promise<Backing> {
  return withEngineLog(`Starting "${spec.modelId}"`, context.signal, () => acquire(spec, model, context, parts));
}

async function acquire(
  spec: StartSpec,
  model: GgufModel,
  context: StartContext,
  { llama, weights, memory }: EngineParts,
): Promise<Backing> {
  const { profile, gpuLayers } = spec;
  const { signal } = context;
  checkContextSize(model, profile.contextSize);
  checkThreads(profile, context.maxThreads);
  checkOptions(profile, await insights(model, llama), llama);

  const owned = new Owned();
  owned.add(useThreads(llama, context.maxThreads));
  try {
    const wanted = wantedWeights(model, profile, gpuLayers);
    const share = await weights.join(wanted, context, (each) => loadWeights(llama, model, spec, each));
    owned.add(() => share.release());
    const loaded = await share.loaded();
    const backing = new InProcessBacking({ spec, file: model, model: loaded, weightsKey: share.key }, () =>
      owned.dispose(),
    );
    owned.add(backing.watch(loaded.onDispose));
    const native = await withContextDefaults(loaded, profile);
    const parts: Parts = { slots: [], embedding: [], ranking: [] };
    const hasSlots = profile.mode === "server" && generates(profile);
    const layout = hasSlots
      ? await chooseLayout({ model, profile, gpuLayers, llama, memory }, native, signal)
      : undefined;
    for (const plan of contextPlans(model, profile, layout?.spread ?? { contexts: 1, threads: profile.threads })) {
      signal.throwIfAborted();
      const estimate = async (): Promise<ContextBytes> => {
        const need = await estimateContext(model, profile, plan, gpuLayers, llama);
        return { ram: need.cpuRam, vram: need.gpuVram };
      };
      const made = { spec, native, owned, backing, context, layout };
      backing.hold(await withEngineLog("Creating a context", signal, () => addPart(parts, plan, estimate, made)));
    }
    signal.throwIfAborted();
    return backing.open(serve(parts, { spec, native, owned, backing, context, layout }));
  } catch (error) {
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
  readonly slots: SlotGroupOptions[];
  transient?: TransientGeneration;
  readonly embedding: LlamaEmbeddingContext[];
  readonly ranking: LlamaRankingContext[];
}

function serve(
  { slots, transient, embedding, ranking }: Parts,
  { spec: { modelId, incarnation, profile }, native, backing, context: { queueLimit, steps }, layout }: PartContext,
): BackingParts {
  const { contextSize, maxQueue } = profile;
  const onBroken = (cause: unknown) => backing.crash(cause);
  const server = { modelId, incarnation, maxQueue, queueLimit, steps, detokenizer: native, groups: slots, onBroken };
  const generation = slots.length > 0 ? new SlotServer(server) : transient;
  const limits = { modelId, contextSize, maxQueue, queueLimit };
  return {
    ...(generation && { generation }),
    ...(layout && { layout: layout.view }),
    ...(embedding.length > 0 && { embedder: new Embedder(embedding, limits) }),
    ...(ranking.length > 0 && { ranker: new Ranker(ranking, limits) }),
  };
}

interface PartContext {
  readonly spec: StartSpec;
  /** With the options of this model's contexts. */
  readonly native: LlamaModel;
  readonly owned: Owned;
  readonly backing: InProcessBacking;
  readonly context: StartContext;
  readonly layout: ChosenLayout | undefined;
}

/** Creates one context, and returns what it holds. */
async function addPart(
  parts: Parts,
  plan: ContextPlan,
  estimate: () => Promise<ContextBytes>,
  { spec, native, owned, backing, context: { queueLimit, steps }, layout }: PartContext,
): Promise<ContextBytes> {
  const { modelId, profile } = spec;
  switch (plan.kind) {
    case "slots": {
      const context = await createGenerationContext(native, plan);
      owned.add(() => context.dispose());
      backing.watch(context.onDispose);
      parts.slots.push({
        slots: plan.sequences,
        batchSize: plan.batchSize,
        decodeWidths: layout?.decodeWidths(plan.sequences) ?? [],
        newSequence: () => newSequence(context),
      });
      return contextBytes(context) ?? estimate();
    }
    case "transient":
      parts.transient = new TransientGeneration({
        modelId,
        incarnation: spec.incarnation,
        model: native,
        maxQueue: profile.maxQueue,
        queueLimit,
        steps,
        batchSize: plan.batchSize,
        createContext: () => createGenerationContext(native, plan),
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
