/** What a model is to be started as: the caller's settings, completed from the file. Pure. */
import type { ModelProfile, ResolvedModel } from "../backends/backend.js";
import { UnsupportedCapabilityError } from "../errors.js";
import type { Capability, Mode, ModelId } from "../model.js";
import type { LoadSettings } from "../table/entry.js";

const DEFAULT_CONTEXT_SIZE = 4096;
const DEFAULT_PARALLEL = 4;
const DEFAULT_MAX_QUEUE = 64;

/** Fills in every default. Throws `unsupported_capability` if the file cannot do what is asked of it. */
export function profileOf(id: ModelId, settings: LoadSettings, model: ResolvedModel): ModelProfile {
  const capabilities = settings.capabilities ?? model.defaultCapabilities;
  const mode = settings.mode ?? defaultMode(capabilities);
  const missing = capabilities.find((capability) => !model.supports.includes(capability));
  if (missing !== undefined) throw new UnsupportedCapabilityError(id, missing, mode, model.supports, "file");
  const { engine } = settings;
  return {
    ...engine,
    mode,
    capabilities: Object.freeze([...capabilities]),
    contextSize: engine.contextSize ?? Math.min(DEFAULT_CONTEXT_SIZE, model.trainedContextSize),
    // direct calls run one after the other: one transient context at a time keeps the memory claim true
    parallel: mode === "direct" ? 1 : (engine.parallel ?? DEFAULT_PARALLEL),
    maxQueue: engine.maxQueue ?? DEFAULT_MAX_QUEUE,
  };
}

/** Embedding and ranking need no slots, so they are served directly; the rest gets batching. */
function defaultMode(capabilities: readonly Capability[]): Mode {
  return capabilities.includes("embed") || capabilities.includes("rank") ? "direct" : "server";
}
