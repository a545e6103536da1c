/** From the caller's sampling options to the engine's, with a last check: a bad number must not reach native code. */
import { randomInt } from "node:crypto";
import type { SequenceEvaluateOptions, Token } from "node-llama-cpp";
import { ContextLengthExceededError, InvalidOptionError } from "../../errors.js";
import type { Sampling } from "../backend.js";
import { DEFAULT_MAX_TOKENS } from "./overflow.js";

/** How far the repeat penalty looks back. */
export const PUNISHED_TOKENS = 64;
/** Below it a logit divided by the temperature leaves the range of the engine's numbers; greedy is what it comes to. */
const LEAST_TEMPERATURE = 1e-6;
const MAX_SEED = 2 ** 32 - 1;
/** The engine counts in 32 bits. */
const MAX_TOP_K = 2 ** 31 - 1;

/**
 * The engine's options for one request. `punishable` is read at each step: the last of these tokens are the ones that
 * the repeat penalty makes less likely.
 */
export function engineSampling(sampling: Sampling, punishable: readonly Token[]): SequenceEvaluateOptions {
  const { temperature, topK, topP, minP, repeatPenalty } = sampling;
  check("temperature", temperature, 0, Number.MAX_VALUE);
  check("topK", topK, 0, MAX_TOP_K);
  check("topP", topP, 0, 1);
  check("minP", minP, 0, 1);
  check("repeatPenalty", repeatPenalty, Number.MIN_VALUE, Number.MAX_VALUE);
  // The library's own default is the clock's second, so that two requests would get one text.
  const seed = sampling.seed ?? randomInt(MAX_SEED);
  check("seed", seed, 0, MAX_SEED);
  return {
    temperature: temperature < LEAST_TEMPERATURE ? 0 : temperature,
    topK,
    topP,
    minP,
    seed,
    ...(repeatPenalty === 1
      ? {}
      : { repeatPenalty: { punishTokens: () => punishable.slice(-PUNISHED_TOKENS), penalty: repeatPenalty } }),
  };
}

/**
 * Tokens that this request may produce.
 * @throws ContextLengthExceededError if the prompt, or it with the tokens asked for, does not fit into a slot.
 */
export function allowedTokens(modelId: string, sampling: Sampling, promptTokens: number, contextSize: number): number {
  const left = contextSize - promptTokens;
  if (left < 1) throw new ContextLengthExceededError(modelId, contextSize, promptTokens);
  const { maxTokens } = sampling;
  if (maxTokens === undefined) return Math.min(DEFAULT_MAX_TOKENS, left);
  check("maxTokens", maxTokens, 1, Number.MAX_SAFE_INTEGER);
  if (sampling.onOverflow === "stop") return Math.min(maxTokens, left);
  if (maxTokens > left) throw new ContextLengthExceededError(modelId, contextSize, promptTokens, maxTokens);
  return maxTokens;
}

/**
 * Refuses text that the engine would change without a word: half a surrogate pair becomes U+FFFD. NUL is fine, it
 * reaches the model as it is (measured).
 */
export function checkText(option: string, text: string): void {
  if (!text.isWellFormed())
    throw new InvalidOptionError(option, "well-formed text (it has half of a surrogate pair)", text);
}

function check(option: string, value: number, least: number, most: number): void {
  if (value >= least && value <= most) return;
  throw new InvalidOptionError(option, `a number from ${least} to ${most}`, value);
}
