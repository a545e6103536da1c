import type { Sampling } from "../../src/backends/backend.js";

/** Every sampling option at its default, but greedy: the same prompt gives the same text. */
export const GREEDY: Sampling = {
  maxTokens: undefined,
  temperature: 0,
  topK: 40,
  topP: 0.95,
  minP: 0.05,
  seed: undefined,
  stop: [],
  repeatPenalty: 1,
};
