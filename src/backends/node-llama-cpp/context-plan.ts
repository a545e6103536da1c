/** Which contexts a model needs for its profile. The estimate counts these and the start creates these: one list. */
import { InvalidOptionError } from "../../errors.js";
import type { ModelProfile } from "../backend.js";
import type { GgufModel } from "./gguf-file.js";

/**
 * `slots`: generation, one sequence for each slot, for as long as the backing lives. `transient`: generation in `direct`
 * mode, created for each call; its bytes count as held all the time. `embedding`, `ranking`: one text at a time.
 */
type ContextKind = "slots" | "transient" | "embedding" | "ranking";

export interface ContextPlan {
  readonly kind: ContextKind;
  /** Tokens of each sequence. */
  readonly contextSize: number;
  readonly sequences: number;
  readonly batchSize: number;
}

const DEFAULT_BATCH_SIZE = 512;
/** llama.cpp's limit. */
const MAX_SEQUENCES = 256;
/**
 * The simulation itself takes some 50 bytes for each cell of the KV cache (measured), which nobody books: far beyond what
 * any machine here can hold, planning alone would take gigabytes.
 */
const MAX_CELLS = 2 ** 23;

/** @throws InvalidOptionError for sizes that cannot be planned. */
export function contextPlans(model: GgufModel, profile: ModelProfile): ContextPlan[] {
  const { mode, capabilities, contextSize } = profile;
  if (!(profile.parallel >= 1 && profile.parallel <= MAX_SEQUENCES))
    throw new InvalidOptionError("parallel", `a number from 1 to ${MAX_SEQUENCES}`, profile.parallel);
  if (!(contextSize >= 2 && contextSize * profile.parallel <= MAX_CELLS)) {
    const expected = `a number from 2; contextSize × parallel of at most ${MAX_CELLS} tokens`;
    throw new InvalidOptionError("contextSize", expected, `${contextSize} × ${profile.parallel}`);
  }
  const plans: ContextPlan[] = [];
  if (capabilities.includes("generate") || capabilities.includes("chat")) {
    const sequences = mode === "server" ? profile.parallel : 1;
    plans.push({
      kind: mode === "server" ? "slots" : "transient",
      contextSize,
      sequences,
      batchSize: generationBatch(profile, sequences),
    });
  }
  const batchSize = model.embedsInOneBatch
    ? contextSize
    : Math.min(profile.batchSize ?? DEFAULT_BATCH_SIZE, contextSize);
  if (capabilities.includes("embed")) plans.push({ kind: "embedding", contextSize, sequences: 1, batchSize });
  if (capabilities.includes("rank")) plans.push({ kind: "ranking", contextSize, sequences: 1, batchSize });
  return plans;
}

function generationBatch(profile: ModelProfile, sequences: number): number {
  const batchSize = Math.min(profile.batchSize ?? DEFAULT_BATCH_SIZE, profile.contextSize * sequences);
  // Every slot must be able to advance in every step.
  return Math.max(batchSize, sequences);
}

/** CPU threads of each of the model's contexts. @throws InvalidOptionError if that is more than all models may use. */
export function threadsOf(profile: ModelProfile, maxThreads: number): number {
  const threads = profile.threads ?? maxThreads;
  if (threads >= 1 && threads <= maxThreads) return threads;
  throw new InvalidOptionError("threads", `a number from 1 to the supervisor's maxThreads (${maxThreads})`, threads);
}
