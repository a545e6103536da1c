import { nanoid } from "nanoid";
import type { Backing, BackingRequest, ModelProfile } from "../backends/backend.js";
import type { Capability } from "../model.js";

const TEXT = "Hello";
const GREEDY = {
  maxTokens: 1,
  temperature: 0,
  topK: 40,
  topP: 1,
  minP: 0,
  seed: 0,
  stop: [],
  repeatPenalty: 1,
};

/** Runs each capability once, so that what the engine sets up at first use is there before the first request. */
export async function warmUp(backing: Backing, { capabilities }: ModelProfile, signal: AbortSignal): Promise<void> {
  for (const capability of capabilities) {
    signal.throwIfAborted();
    // a scope of its own, so that no request finds its text in the cache
    const id = nanoid();
    const request: BackingRequest = { id, signal, scope: `warm-up ${id}`, phase: "queue" };
    await RUNS[capability](backing, request);
  }
}

const RUNS: Record<Capability, (backing: Backing, request: BackingRequest) => Promise<unknown> | undefined> = {
  generate: (backing, request) => backing.generate?.(TEXT, GREEDY, request),
  chat: (backing, request) => backing.chat?.([{ role: "user", content: TEXT }], GREEDY, request),
  embed: (backing, request) => backing.embed?.([TEXT], "truncate", request),
  rank: (backing, request) => backing.rank?.(TEXT, [TEXT], "truncate", request),
};
