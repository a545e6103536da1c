/** Which contexts a model needs for its profile. The estimate counts these and the start creates these: one list. */
import { InvalidOptionError } from "../../errors.js";
import type { ModelProfile } from "../backend.js";
import type { GgufModel } from "./gguf-file.js";
import { slotsOf, type Spread } from "./layout/layout.js";

/**
 * `slots`: generation, one sequence for each slot, for as long as the backing lives. `transient`: generation in `direct`
 * mode, created for each call; its bytes count as held all the time. `embedding`, `ranking`: one text at a time, so there
 * are several where the model has several threads.
 */
type ContextKind = "slots" | "transient" | "embedding" | "ranking";

export interface ContextPlan {
  readonly kind: ContextKind;
  /** Tokens of each sequence. */
  readonly contextSize: number;
  readonly sequences: number;
  readonly batchSize: number;
  readonly threads: number;
}

const DEFAULT_BATCH_SIZE = 512;
/** llama.cpp's limit. */
const MAX_SEQUENCES = 256;
/**
 * The simulation itself takes some 50 bytes for each cell of the KV cache (measured), which nobody books: far beyond what
 * any machine here can hold, planning alone would take gigabytes.
 */
const MAX_CELLS = 2 ** 23;

/**
 * `spread`: how the slots of `server` mode are spread over contexts.
 * @throws InvalidOptionError for sizes that cannot be planned.
 */
export function contextPlans(model: GgufModel, profile: ModelProfile, spread: Spread): ContextPlan[] {
  checkSizes(profile);
  const { mode, capabilities, contextSize, threads } = profile;
  const plans: ContextPlan[] = [];
  const generation = (kind: ContextKind, sequences: number, each: number): ContextPlan => {
    return { kind, contextSize, sequences, batchSize: generationBatch(profile, sequences), threads: each };
  };
  if (generates(profile)) {
    if (mode === "direct") plans.push(generation("transient", 1, threads));
    else
      for (const sequences of slotsOf(profile.parallel, spread.contexts))
        plans.push(generation("slots", sequences, spread.threads));
  }
  const batchSize = model.embedsInOneBatch
    ? contextSize
    : Math.min(profile.batchSize ?? DEFAULT_BATCH_SIZE, contextSize);
  const texts = Math.min(threads, profile.parallel);
  const forText = { contextSize, sequences: 1, batchSize, threads: Math.floor(threads / texts) };
  const forTexts = (kind: ContextKind) => Array.from({ length: texts }, () => ({ kind, ...forText }));
  if (capabilities.includes("embed")) plans.push(...forTexts("embedding"));
  if (capabilities.includes("rank")) plans.push(...forTexts("ranking"));
  return plans;
}

/** Whether the model has slots, or contexts that are made for each call. */
export function generates({ capabilities }: ModelProfile): boolean {
  return capabilities.includes("generate") || capabilities.includes("chat");
}

/** @throws InvalidOptionError */
function checkSizes({ parallel, contextSize }: ModelProfile): void {
  if (!(parallel >= 1 && parallel <= MAX_SEQUENCES))
    throw new InvalidOptionError("parallel", `a number from 1 to ${MAX_SEQUENCES}`, parallel);
  if (contextSize >= 2 && contextSize * parallel <= MAX_CELLS) return;
  const expected = `a number from 2; contextSize × parallel of at most ${MAX_CELLS} tokens`;
  throw new InvalidOptionError("contextSize", expected, `${contextSize} × ${parallel}`);
}

function generationBatch(profile: ModelProfile, sequences: number): number {
  const batchSize = Math.min(profile.batchSize ?? DEFAULT_BATCH_SIZE, profile.contextSize * sequences);
  // Every slot must be able to advance in every step.
  return Math.max(batchSize, sequences);
}

/** @throws InvalidOptionError if the model wants more CPU threads than all models may use. */
export function checkThreads({ threads }: ModelProfile, maxThreads: number): void {
  if (threads >= 1 && threads <= maxThreads) return;
  throw new InvalidOptionError("threads", `a number from 1 to the supervisor's maxThreads (${maxThreads})`, threads);
}
