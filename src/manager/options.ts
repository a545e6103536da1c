/** Checks what callers pass in. Everything refused here is refused before anything is done. */
import { z } from "zod";
import type {
  LoadOptions,
  ModelManagerEvents,
  ModelOptions,
  ModelSupervisorOptions,
  RegisterOptions,
  UnloadOptions,
} from "../api.js";
import type { Sampling } from "../backends/backend.js";
import { InvalidOptionError } from "../errors.js";
import type { EmbedOptions, GenerateOptions, RankOptions, RequestOptions, WaitOptions } from "../inference.js";
import type { LoadPolicy, MemoryBudget } from "../model.js";
import type { LoadSettings } from "../table/entry.js";
import { isSize } from "./memory/size.js";
import { check, nearest } from "../backends/option-check.js";

export const object = <Shape extends z.ZodRawShape>(shape: Shape) => z.strictObject(shape, { error: "an object" });
const whole = (min: number, max = Number.MAX_SAFE_INTEGER) =>
  z.custom<number>(
    (value) => Number.isSafeInteger(value) && Number(value) >= min && Number(value) <= max,
    max === Number.MAX_SAFE_INTEGER ? `a whole number, at least ${min}` : `a whole number from ${min} to ${max}`,
  );
const number = (min: number, max: number) =>
  z.custom<number>(
    (value) => typeof value === "number" && value >= min && value <= max,
    `a number from ${min} to ${max}`,
  );
export const flag = z.boolean({ error: "true or false" });
export const choice = <const Name extends string>(...names: Name[]) =>
  z.enum(names, { error: `one of ${names.map((name) => `"${name}"`).join(", ")}` });
export const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const instance = <T>(check: (value: unknown) => value is T, expected: string) => z.custom<T>(check, expected);
const hasMethods = (value: unknown, ...names: string[]) =>
  typeof value === "object" && value !== null && names.every((name) => typeof Reflect.get(value, name) === "function");

/** The longest time that timers take; a longer one would fire at once. */
const MAX_DELAY_MS = 2 ** 31 - 1;
const milliseconds = z.custom<number>(
  (value) => typeof value === "number" && value >= 0 && (value <= MAX_DELAY_MS || value === Infinity),
  `milliseconds from 0 to ${MAX_DELAY_MS}, or Infinity`,
);
const signal = instance((value): value is AbortSignal => value instanceof AbortSignal, "an AbortSignal");
const size = z.custom<number | `${number}MiB`>(isSize, 'bytes as a number of at least 0, or a size such as "512MiB"');

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
const waitShape = { signal: signal.optional(), timeoutMs: milliseconds.optional() };
const waitOptions = object(waitShape);
const requestShape = { ...waitShape, waitForLoad: flag.optional() };
const requestOptions = object(requestShape);
const rankOptions = object({ ...requestShape, truncate: flag.optional() });
const embedOptions = object({
  ...requestShape,
  truncate: flag.optional(),
  normalize: flag.optional(),
  dimensions: whole(1, 2 ** 20).optional(),
});
const stopText = z.custom<string>(
  (value) => typeof value === "string" && value !== "" && value.isWellFormed(),
  "non-empty, well-formed strings",
);
const MAX_BIASED_TOKENS = 1024;
const logitBias = instance((value): value is Readonly<Record<number, number>> => {
  if (typeof value !== "object" || value === null || Array.isArray(value) || value instanceof Map) return false;
  const biases = Object.entries(value);
  return (
    biases.length <= MAX_BIASED_TOKENS &&
    biases.every(([token, bias]) => /^\d{1,9}$/.test(token) && typeof bias === "number" && Math.abs(bias) <= 100)
  );
}, `a map of up to ${MAX_BIASED_TOKENS} token ids to numbers from -100 to 100`);
const SCOPE = "a string of at most 200 characters";
export const generateShape = {
  ...requestShape,
  maxTokens: whole(1).optional(),
  temperature: number(0, 100).optional(),
  topK: whole(0, 2 ** 31 - 1).optional(),
  topP: number(0, 1).optional(),
  minP: number(0, 1).optional(),
  seed: whole(0, 2 ** 32 - 1).optional(),
  stop: z.union([stopText, z.array(stopText).max(16)], { error: "a non-empty string or up to 16 of them" }).optional(),
  repeatPenalty: number(0.01, 100).optional(),
  logitBias: logitBias.optional(),
  logprobs: flag.optional(),
  topLogprobs: whole(0, 20).optional(),
  // what a schema may hold is for the backend to say
  jsonSchema: instance(isRecord, "a JSON schema object").optional(),
  grammar: instance(
    (value): value is string => typeof value === "string" && value.trim() !== "" && value.isWellFormed(),
    "GBNF text",
  ).optional(),
  scope: z.string({ error: SCOPE }).max(200, { error: SCOPE }).optional(),
  priority: choice("interactive", "system", "background").optional(),
  idleConsumerMs: milliseconds.optional(),
  onOverflow: choice("truncate-oldest", "stop").optional(),
};
const generateOptions = object(generateShape);

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

const tokens = z.array(whole(0, 2 ** 31 - 1), { error: "an array of token ids" });

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

/** What {@link GenerateOptions} say about the request itself. */
export type DispatchOptions = RequestOptions & Pick<GenerateOptions, "scope" | "priority" | "idleConsumerMs">;

export function checkWaitOptions(options: unknown): WaitOptions {
  return check(waitOptions, options, "options");
}

export function checkRequestOptions(options: unknown): RequestOptions {
  return check(requestOptions, options, "options");
}

export function checkEmbedOptions(options: unknown): EmbedOptions {
  return check(embedOptions, options, "options");
}

export function checkRankOptions(options: unknown): RankOptions {
  return check(rankOptions, options, "options");
}

export function checkGenerateOptions(options: unknown): { sampling: Sampling; request: DispatchOptions } {
  for (const name of ["tools", "toolChoice", "enableThinking"])
    if (isRecord(options) && options[name] !== undefined)
      throw new InvalidOptionError(
        name,
        "no such option beside a plain prompt; chat and streamChat have it",
        options[name],
      );
  return samplingOf(check(generateOptions, options, "options"));
}

/** Fills in the defaults. */
export function samplingOf(options: GenerateOptions): { sampling: Sampling; request: DispatchOptions } {
  const { signal, timeoutMs, waitForLoad, scope, priority, idleConsumerMs, stop, ...given } = options;
  if (given.jsonSchema !== undefined && given.grammar !== undefined)
    throw new InvalidOptionError("grammar", "no grammar beside jsonSchema", given.grammar);
  if (given.topLogprobs !== undefined && given.logprobs !== true)
    throw new InvalidOptionError("topLogprobs", "logprobs: true beside it", given.topLogprobs);
  return {
    request: { signal, timeoutMs, waitForLoad, scope, priority, idleConsumerMs },
    sampling: {
      maxTokens: given.maxTokens,
      temperature: given.temperature ?? 0.8,
      topK: given.topK ?? 40,
      topP: given.topP ?? 0.95,
      minP: given.minP ?? 0.05,
      seed: given.seed,
      stop: stop === undefined ? [] : typeof stop === "string" ? [stop] : stop,
      repeatPenalty: given.repeatPenalty ?? 1,
      logitBias: given.logitBias && Object.entries(given.logitBias).map(([token, bias]) => [Number(token), bias]),
      topLogprobs: given.logprobs ? (given.topLogprobs ?? 0) : undefined,
      jsonSchema: given.jsonSchema,
      grammar: given.grammar,
      onOverflow: given.onOverflow,
    },
  };
}

/** Text for the engine: a lone surrogate would become another character on the way to native code. */
export function checkText(text: unknown, name: string): string {
  if (typeof text !== "string") throw new InvalidOptionError(name, "a string", text);
  if (!text.isWellFormed())
    throw new InvalidOptionError(name, "well-formed text without lone surrogates", text.toWellFormed());
  return text;
}

export function checkTexts(texts: unknown, name: string): readonly string[] {
  if (!Array.isArray(texts)) throw new InvalidOptionError(name, "an array of strings", texts);
  return Array.from(texts, (text, index) => checkText(text, `${name}.${index}`)); // a hole is no text either
}

export function checkTokens(value: unknown): readonly number[] {
  return check(tokens, value, "tokens");
}
