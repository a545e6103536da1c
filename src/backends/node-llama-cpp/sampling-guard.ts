/**
 * A grammar can lead where no token of the vocabulary goes on (a character that it cannot spell, no end token). The native
 * sampler then rejects, and the library's batch loop has nobody who waits for that: the request would never settle, and
 * the unhandled rejection would end the process (measured on 3.21.1). The loop does know a sampler that finds no token,
 * and fails that one request; so a rejection is turned into this.
 */
import type { LlamaContext } from "node-llama-cpp";

const NO_TOKEN = -1;
/** The library's error for it. */
const MESSAGE = "Failed to sample next token";

/** @throws TypeError if the library keeps its native context in another place than it did. */
export function guardSampling(context: LlamaContext): void {
  const native: unknown = Reflect.get(context, "_ctx");
  if (typeof native !== "object" || native === null) throw new TypeError("The context has no native part");
  const sample: unknown = Reflect.get(native, "sampleToken");
  if (typeof sample !== "function") throw new TypeError("The native context has no sampler");
  // no async function: it runs for every token
  const guarded = (...given: unknown[]): unknown => {
    const sampled: unknown = Reflect.apply(sample, native, given);
    // with probabilities asked for, the library reads the first of three
    return sampled instanceof Promise ? sampled.catch(() => (given.length > 2 ? [NO_TOKEN] : NO_TOKEN)) : sampled;
  };
  Object.defineProperty(native, "sampleToken", { value: guarded, configurable: true });
}

export function isNoTokenError(error: unknown): boolean {
  return error instanceof Error && error.message === MESSAGE;
}
