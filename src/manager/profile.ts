/** What a model is to be started as: the caller's settings, completed from the file. Pure. */
import type { ModelProfile, ResolvedModel } from "../backends/backend.js";
import { UnsupportedCapabilityError } from "../errors.js";
import type { Capability, Mode, ModelId } from "../model.js";
import type { LoadSettings } from "../table/entry.js";

const DEFAULT_CONTEXT_SIZE = 4096;
const DEFAULT_PARALLEL = 4;
const DEFAULT_MAX_QUEUE = 64;

/** Fills in every default. Throws `unsupported_capability` if the file cannot do what is asked of it. */
export function profileOf(id: ModelId, settings: LoadSettings, model: ResolvedModel, maxThreads: number): ModelProfile {
  const capabilities = settings.capabilities ?? model.defaultCapabilities;
  const mode = settings.mode ?? defaultMode(capabilities);
  const missing = capabilities.find((capability) => !model.supports.includes(capability));
  if (missing !== undefined) throw new UnsupportedCapabilityError(id, missing, mode, model.supports, "file");
  const { engine } = settings;
  const threads = engine.threads ?? maxThreads;
  const parallel = engine.parallel ?? DEFAULT_PARALLEL;
  return {
    ...engine,
    mode,
    capabilities: Object.freeze([...capabilities]),
    contextSize: engine.contextSize ?? Math.min(DEFAULT_CONTEXT_SIZE, model.trainedContextSize),
    parallel: mode === "direct" ? textsAtOnce(capabilities, parallel, threads) : parallel,
    threads,
    threadsAreSet: engine.threads !== undefined,
    maxQueue: engine.maxQueue ?? DEFAULT_MAX_QUEUE,
  };
}

/** Texts need a thread each. Generations run one after the other: one transient context keeps the memory claim true. */
function textsAtOnce(capabilities: readonly Capability[], parallel: number, threads: number): number {
  return takesTexts(capabilities) ? Math.min(parallel, threads) : 1;
}

/** Embedding and ranking need no slots, so they are served directly; the rest gets batching. */
function defaultMode(capabilities: readonly Capability[]): Mode {
  return takesTexts(capabilities) ? "direct" : "server";
}

function takesTexts(capabilities: readonly Capability[]): boolean {
  return capabilities.includes("embed") || capabilities.includes("rank");
}
