/** Checks what callers pass to inference calls. Everything refused here is refused before anything is done. */
import { z } from "zod";
import type { Sampling } from "../backends/backend.js";
import { check } from "../backends/option-check.js";
import { InvalidOptionError } from "../errors.js";
import type { EmbedOptions, GenerateOptions, RankOptions, RequestOptions, WaitOptions } from "../inference.js";
import { choice, flag, instance, isRecord, milliseconds, number, object, signal, whole } from "./option-parts.js";

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

const tokens = z.array(whole(0, 2 ** 31 - 1), { error: "an array of token ids" });

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
