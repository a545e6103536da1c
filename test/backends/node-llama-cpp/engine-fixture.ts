/** What the tests of the real engine share. */
import { onTestFinished } from "vitest";
import type {
  Backing,
  BackingRequest,
  EngineOptions,
  ModelProfile,
  ResolvedModel,
  StartContext,
} from "../../../src/backends/backend.js";
import { nodeLlamaCpp } from "../../../src/backends/node-llama-cpp/index.js";
import type { Capability, Mode } from "../../../src/model.js";

/** Nothing is measured: what these tests see does not depend on the machine. */
export const backend = nodeLlamaCpp({ calibrationFile: false });

export { GREEDY } from "../../support/greedy.js";

export const never = new AbortController().signal;

export function resolve(file: string, options: EngineOptions = {}): Promise<ResolvedModel> {
  return backend.resolve(file, options, never);
}

export interface ProfileOptions extends EngineOptions {
  readonly mode?: Mode;
  readonly capabilities?: readonly Capability[];
}

/** Small contexts, so that a test takes milliseconds. */
export function profileOf(model: ResolvedModel, options: ProfileOptions = {}): ModelProfile {
  const capabilities = options.capabilities ?? model.defaultCapabilities;
  const isDirect = capabilities.includes("embed") || capabilities.includes("rank");
  return {
    mode: isDirect ? "direct" : "server",
    ...options,
    capabilities,
    contextSize: options.contextSize ?? 256,
    parallel: options.parallel ?? 2,
    threads: options.threads ?? 1,
    maxQueue: options.maxQueue ?? 64,
  };
}

/** Starts a backing as the manager would; it is disposed when the test ends. */
export async function start(
  file: string,
  options: ProfileOptions = {},
  context: Partial<StartContext> = {},
): Promise<Backing> {
  const model = await resolve(file);
  const backing = await startResolved(model, profileOf(model, options), context);
  onTestFinished(() => backing.dispose());
  return backing;
}

export async function startResolved(
  model: ResolvedModel,
  profile: ModelProfile,
  context: Partial<StartContext> = {},
): Promise<Backing> {
  const { gpuLayers } = await backend.estimate(model, profile);
  return backend.start(
    { modelId: "test", incarnation: 1, model, profile, gpuLayers },
    { signal: never, maxThreads: 1, onProgress: () => undefined, ...context },
  );
}

/** A request and the pieces of text that it was given. */
export function request(
  options: { signal?: AbortSignal; onText?: (text: string) => void } = {},
): BackingRequest & { readonly pieces: string[] } {
  const pieces: string[] = [];
  return {
    id: "request",
    signal: options.signal ?? never,
    phase: "load",
    pieces,
    onPart: (part) => {
      if (part.type !== "text") return;
      pieces.push(part.text);
      options.onText?.(part.text);
    },
  };
}

/** The method of a capability that the backing must have. */
export function method<Name extends "generate" | "chat" | "embed" | "rank" | "tokenize" | "detokenize">(
  backing: Backing,
  name: Name,
): NonNullable<Backing[Name]> {
  const found = backing[name];
  if (found === undefined) throw new TypeError(`The backing has no method "${name}"`);
  return found;
}
