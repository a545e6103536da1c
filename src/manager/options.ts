/** Checks what callers pass to start, load and unload models. Everything refused here is refused before anything is done. */
import { z } from "zod";
import type {
  LoadOptions,
  ModelManagerEvents,
  ModelOptions,
  ModelSupervisorOptions,
  RegisterOptions,
  UnloadOptions,
} from "../api.js";
import { check, nearest } from "../backends/option-check.js";
import { InvalidOptionError } from "../errors.js";
import type { LoadPolicy, MemoryBudget } from "../model.js";
import type { LoadSettings } from "../table/entry.js";
import {
  MAX_DELAY_MS,
  choice,
  flag,
  hasMethods,
  instance,
  milliseconds,
  number,
  object,
  signal,
  size,
  whole,
} from "./option-parts.js";

const modelId = z.custom<string>(
  // oxlint-disable-next-line no-control-regex -- control characters are what is refused
  (value) => typeof value === "string" && /^[^@\u0000-\u001f\u007f][^\u0000-\u001f\u007f]{0,199}$/.test(value),
  "a string of 1 to 200 characters, no control characters, not starting with @",
);
const SOURCE = "the path of a GGUF file, hf:user/repo:quant, hf:user/repo/file.gguf, or an https URL";
const source = z.string({ error: SOURCE }).min(1, { error: SOURCE });

const modelShape = {
  capabilities: z
    .array(choice("generate", "chat", "embed", "rank"), { error: "an array of capabilities" })
    .min(1, { error: "at least one capability" })
    .optional(),
  mode: choice("server", "direct").optional(),
  default: flag.optional(),
  gpuLayers: z
    .union([choice("auto", "max"), whole(0)], { error: '"auto", "max" or a whole number of at least 0' })
    .optional(),
  splitMode: choice("none", "layer", "row").optional(),
  tensorSplit: z
    .array(number(0, 1e9), { error: "an array of weights of at least 0" })
    .refine((weights) => weights.length === 0 || weights.some((weight) => weight > 0), {
      error: "at least one weight above 0",
    })
    .optional(),
  mainGpu: whole(0, 255).optional(),
  offloadKqv: flag.optional(),
  contextSize: whole(8, 2 ** 24).optional(),
  parallel: whole(1, 256).optional(),
  kvCacheType: choice("f16", "q8_0", "q4_0").optional(),
  batchSize: whole(1, 2 ** 16).optional(),
  flashAttention: flag.optional(),
  checkTensors: flag.optional(),
  threads: whole(1, 1024).optional(),
  decodeWidth: whole(1, 256).optional(),
  maxQueue: whole(0, 1e6).optional(),
  ttlMs: milliseconds.optional(),
  evictable: flag.optional(),
  evictionPriority: number(-1e9, 1e9).optional(),
  warmUp: flag.optional(),
};
const modelOptions = object(modelShape);
const loadOptions = object({
  ...modelShape,
  signal: signal.optional(),
  onProgress: instance(
    (value): value is NonNullable<LoadOptions["onProgress"]> => typeof value === "function",
    "a function",
  ).optional(),
});
const registerOptions = object({
  ...modelShape,
  loadPolicy: choice("lazy").optional(),
  signal: signal.optional(),
});
const unloadOptions = object({ timeoutMs: milliseconds.optional(), force: flag.optional() });
const closeOptions = object({ timeoutMs: milliseconds.optional() });
const memoryBudget = z.union(
  [
    choice("unlimited", "auto", "edge"),
    size,
    object({
      ram: z.union([choice("auto", "unlimited"), size]).optional(),
      gpu: z.union([choice("auto", "unlimited"), z.array(z.union([choice("unlimited"), size]))]).optional(),
    }),
  ],
  { error: '"unlimited", "auto", "edge", a size such as 8e9 or "8GiB", or a map { ram, gpu } of these' },
);
const supervisorOptions = object({
  name: z.string({ error: "a non-empty string" }).min(1, { error: "a non-empty string" }).optional(),
  backend: instance(
    (value): value is NonNullable<ModelSupervisorOptions["backend"]> =>
      hasMethods(value, "devices", "resolve", "estimate", "start"),
    "a Backend with devices, resolve, estimate and start",
  ).optional(),
  memoryBudget: memoryBudget.optional(),
  models: z
    .array(object({ id: modelId, source, ...modelShape, loadPolicy: choice("eager", "lazy").optional() }), {
      error: "an array of { id, source, … }",
    })
    .optional(),
  maxThreads: z
    .union([choice("auto"), whole(1, 1024)], { error: '"auto" or a whole number from 1 to 1024' })
    .optional(),
  maxQueueTotal: whole(0, 1e6).optional(),
  overBudget: choice("refuse", "evict-idle").optional(),
  maxWaitMs: milliseconds.optional(),
  defaultTtlMs: milliseconds.optional(),
  sweepIntervalMs: number(1, MAX_DELAY_MS).optional(),
  modelsDir: z.string({ error: "the path of a folder" }).min(1, { error: "the path of a folder" }).optional(),
  clock: instance(
    (value): value is NonNullable<ModelSupervisorOptions["clock"]> =>
      hasMethods(value, "now", "setTimeout", "clearTimeout"),
    "a Clock with now, setTimeout and clearTimeout",
  ).optional(),
  logger: instance(
    (value): value is NonNullable<ModelSupervisorOptions["logger"]> => hasMethods(value, "warn"),
    "a Logger with warn",
  ).optional(),
});

export function checkSupervisorOptions(options: unknown) {
  const checked = check(supervisorOptions, options, "options");
  const ids = (checked.models ?? []).map((model) => model.id);
  const twice = ids.find((id, index) => ids.indexOf(id) !== index);
  if (twice !== undefined) throw new InvalidOptionError("models", "each id once", twice);
  const defaults = (checked.models ?? []).filter((model) => model.default);
  if (defaults.length > 1) throw new InvalidOptionError("models", "at most one default model", defaults[1]?.id);
  const { backend, modelsDir } = checked;
  if (backend !== undefined && modelsDir !== undefined)
    throw new InvalidOptionError("modelsDir", "no value beside backend, which is given its own folder", modelsDir);
  return checked;
}

const eventNames = {
  "model:registered": true,
  "model:loading": true,
  "model:ready": true,
  "model:unloading": true,
  "model:unloaded": true,
  "model:error": true,
  "model:lost": true,
  "budget:refused": true,
  "request:start": true,
  "request:queued": true,
  "request:end": true,
  "engine:step": true,
} satisfies Record<keyof ModelManagerEvents, true>;

/** A listener for an event that never comes would wait for ever. */
export function checkEventName(name: unknown): void {
  if (typeof name === "string" && Object.hasOwn(eventNames, name)) return;
  throw new InvalidOptionError("event", nearest(String(name), Object.keys(eventNames)), name);
}

export function checkModelId(id: unknown): string {
  return check(modelId, id, "id");
}

export function checkSource(value: unknown): string {
  return check(source, value, "source");
}

export function checkLoadOptions(options: unknown): LoadOptions {
  return check(loadOptions, options, "options");
}

/** Without a source a model is loaded with the options it was declared with; others would have no effect. */
export function checkNoModelOptions({ default: _default, ...options }: ModelOptions): void {
  const [given] = Object.entries(options).find(([, value]) => value !== undefined) ?? [];
  if (given === undefined) return;
  throw new InvalidOptionError(
    given,
    "no such option without a source: the model keeps the options it has",
    Reflect.get(options, given),
  );
}

export function checkModelOptions(options: unknown): ModelOptions {
  return check(modelOptions, options, "options");
}

export function checkRegisterOptions(options: unknown): RegisterOptions {
  return check(registerOptions, options, "options");
}

export function checkMemoryBudget(budget: unknown): MemoryBudget {
  return check(memoryBudget, budget, "memoryBudget");
}

/** Splits what is kept with the row from what concerns one load only. */
export function loadSettings(
  options: ModelOptions & { readonly loadPolicy?: LoadPolicy | undefined },
  defaultTtlMs: number,
): LoadSettings {
  const {
    capabilities,
    mode,
    default: _default,
    loadPolicy,
    ttlMs,
    evictable,
    evictionPriority,
    warmUp,
    ...engine
  } = options;
  const residency = {
    loadPolicy: loadPolicy ?? "eager",
    ttlMs: ttlMs ?? defaultTtlMs,
    evictable: evictable ?? true,
    evictionPriority: evictionPriority ?? 0,
    warmUp: warmUp ?? false,
  };
  return { capabilities: capabilities && [...new Set(capabilities)], mode, engine, residency };
}

export function checkUnloadOptions(options: unknown): Required<{ timeoutMs: number; force: boolean }> {
  const { timeoutMs, force = false }: UnloadOptions = check(unloadOptions, options, "options");
  return { force, timeoutMs: timeoutMs ?? (force ? 0 : 30_000) };
}

export function checkCloseOptions(options: unknown): { timeoutMs: number } {
  return { timeoutMs: check(closeOptions, options, "options").timeoutMs ?? 10_000 };
}
