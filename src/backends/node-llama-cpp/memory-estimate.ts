/**
 * What a load will need, from the file alone. The engine simulates the load without allocating (1 to 30 ms), so the
 * figures are those that it reports afterwards, to the byte. The exception are quantized weights that its CPU backend
 * repacks into a second copy (Q4_0 and others, by CPU): the simulation does not count that copy.
 *
 * `useMmap` is never passed: an estimate that passed it has aborted the process (node-llama-cpp #637); left out, the
 * engine takes what it will load with.
 */
import type { GgufInsights, GgufInsightsResourceRequirements, Llama } from "node-llama-cpp";
import { EstimateFailedError, InvalidOptionError } from "../../errors.js";
import type { EngineOptions, Estimate, ModelProfile } from "../backend.js";
import { contextPlans, type ContextPlan } from "./context-plan.js";
import type { EngineParts } from "./engine-parts.js";
import type { GgufModel } from "./gguf-file.js";
import { kvTypeOf } from "./kv-type.js";
import { possibleSpreads } from "./layout/choose-layout.js";
import type { Spread } from "./layout/layout.js";
import type { WantedWeights } from "./shared-weights.js";

/** No machine has more; a figure beyond it is nonsense, for instance from a damaged header. */
const ABSURD_BYTES = 2 ** 50;

/** Numbers in a block of a quantized KV cache. */
const KV_BLOCK = 32;

/** One read header, one set of insights: they cache what has been simulated. */
const insightsOf = new WeakMap<GgufModel, Promise<GgufInsights>>();

/** The library's view of a model's file. */
export function insights(model: GgufModel, llama: Llama): Promise<GgufInsights> {
  const known = insightsOf.get(model);
  if (known !== undefined) return known;
  const made = import("node-llama-cpp").then((library) => library.GgufInsights.from(model.info, llama));
  insightsOf.set(model, made);
  // a failure is not kept: the header may be for as long as the model is known
  made.catch(() => insightsOf.delete(model));
  return made;
}

/** @throws EstimateFailedError, InvalidOptionError */
export async function estimateMemory(
  model: GgufModel,
  profile: ModelProfile,
  { llama, weights: loaded, memory }: EngineParts,
): Promise<Estimate> {
  const facts = await insights(model, llama);
  checkOptions(profile, facts, llama);
  const loadedLayers = loaded.loadedLayers(wantedWeights(model, profile, 0).identity);
  const gpuLayers = await resolveGpuLayers(facts, profile, llama, loadedLayers);
  const weights = checked(model, "the weights", await facts.estimateModelResourceRequirementsV2({ gpuLayers }));
  const spreads = await possibleSpreads({ model, profile, gpuLayers, llama, memory });
  // Threads change nothing; each number of contexts is counted once, and the one that takes most is what may be needed.
  const needs: GgufInsightsResourceRequirements[] = [];
  for (const spread of uniqueByContexts(spreads)) {
    const need = { cpuRam: 0, gpuVram: 0 };
    for (const plan of contextPlans(model, profile, spread)) {
      const one = await estimateContext(model, profile, plan, gpuLayers, llama);
      need.cpuRam += one.cpuRam;
      need.gpuVram += one.gpuVram;
    }
    needs.push(need);
  }
  return {
    gpuLayers,
    ramBytes: weights.cpuRam + Math.max(...needs.map(({ cpuRam }) => cpuRam)),
    gpuWeightsBytes: weights.gpuVram,
    gpuContextBytes: Math.max(...needs.map(({ gpuVram }) => gpuVram)),
    mappedBytes: llama.supportsMmap ? weights.cpuRam : 0,
    shared: { key: loaded.keyOf(wantedWeights(model, profile, gpuLayers)), ramBytes: weights.cpuRam },
  };
}

/** The weights that a model is loaded with: everything that makes a difference to them, and nothing of its contexts. */
export function wantedWeights(
  { files }: GgufModel,
  { checkTensors = false }: EngineOptions,
  gpuLayers: number,
): WantedWeights {
  const identity = [...files.map((file) => file.identity), checkTensors ? "checked" : ""].join("|");
  return { identity, gpuLayers };
}

function uniqueByContexts(spreads: readonly Spread[]): Spread[] {
  return [...new Map(spreads.map((spread) => [spread.contexts, spread])).values()];
}

/** What one context will hold. @throws EstimateFailedError */
export async function estimateContext(
  model: GgufModel,
  profile: EngineOptions,
  plan: ContextPlan,
  gpuLayers: number,
  llama: Llama,
): Promise<GgufInsightsResourceRequirements> {
  const facts = await insights(model, llama);
  const kvCacheType = await kvTypeOf(profile);
  const need = await facts.estimateContextResourceRequirementsV2({
    contextSize: plan.contextSize,
    sequences: plan.sequences,
    batchSize: plan.batchSize,
    modelGpuLayers: gpuLayers,
    isEmbeddingContext: plan.kind === "embedding" || plan.kind === "ranking",
    flashAttention: facts.flashAttentionSupported ? (profile.flashAttention ?? "auto") : false,
    ...(kvCacheType === undefined ? {} : { kvCacheKeyType: kvCacheType, kvCacheValueType: kvCacheType }),
  });
  return checked(model, `a context of ${plan.contextSize} × ${plan.sequences} tokens`, need);
}

/**
 * `"auto"` and `"max"` become a number here, so that what is planned is what is loaded. As many layers as fit are those of a
 * copy that is there: another one would find less room, and so never be the same.
 */
async function resolveGpuLayers(
  facts: GgufInsights,
  profile: ModelProfile,
  llama: Llama,
  loadedLayers: number | undefined,
): Promise<number> {
  const asked = profile.gpuLayers ?? "auto";
  if (llama.gpu === false || !llama.supportsGpuOffloading) return 0;
  if (asked === "max") return facts.totalLayers;
  if (asked !== "auto") return Math.min(asked, facts.totalLayers);
  if (loadedLayers !== undefined) return loadedLayers;
  const contextSize = profile.contextSize * (profile.mode === "server" ? profile.parallel : 1);
  const embeddingContext = profile.capabilities.includes("embed") || profile.capabilities.includes("rank");
  const { gpuLayers } = await facts.configurationResolver.resolveModelGpuLayersV2({
    fitContext: { contextSize, embeddingContext },
  });
  return gpuLayers;
}

/** Refuses what the engine would ignore, or would fail on without saying why. @throws InvalidOptionError */
export function checkOptions(profile: EngineOptions, facts: GgufInsights, llama: Llama): void {
  if (profile.offloadKqv === false && llama.gpu !== false) {
    throw new InvalidOptionError(
      "offloadKqv",
      "true or nothing: node-llama-cpp keeps the KV cache of a layer where the layer is; use gpuLayers: 0",
      false,
    );
  }
  if (profile.flashAttention === true && !facts.flashAttentionSupported) {
    throw new InvalidOptionError("flashAttention", "false or nothing: this model has no flash attention", true);
  }
  const quantized = profile.kvCacheType !== undefined && profile.kvCacheType !== "f16";
  if (quantized && (profile.flashAttention === false || !facts.flashAttentionSupported)) {
    throw new InvalidOptionError(
      "kvCacheType",
      '"f16": a quantized KV cache needs flash attention',
      profile.kvCacheType,
    );
  }
  const { embedding_length: width, attention } = facts.ggufFileInfo.architectureMetadata;
  const headLength = attention?.key_length ?? Number(width) / Number(attention?.head_count);
  if (quantized && Number.isFinite(headLength) && headLength % KV_BLOCK !== 0) {
    throw new InvalidOptionError(
      "kvCacheType",
      `"f16": this model's attention heads have ${headLength} numbers, not a multiple of ${KV_BLOCK}`,
      profile.kvCacheType,
    );
  }
}

function checked(
  model: GgufModel,
  what: string,
  need: GgufInsightsResourceRequirements,
): GgufInsightsResourceRequirements {
  for (const bytes of [need.cpuRam, need.gpuVram]) {
    if (Number.isFinite(bytes) && bytes >= 0 && bytes <= ABSURD_BYTES) continue;
    throw new EstimateFailedError(model.source, `the engine says that ${what} takes ${bytes} bytes`);
  }
  return need;
}
