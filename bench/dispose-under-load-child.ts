/** The child of `dispose-under-load.ts`: rounds of disposal at random times. Sends what became of the promises. */
import type { Backing, BackingRequest, ModelProfile, ResolvedModel, Sampling } from "../src/backends/backend.js";
import { sharedEngine } from "../src/backends/node-llama-cpp/engine.js";
import { nodeLlamaCpp } from "../src/backends/node-llama-cpp/index.js";

const [mode = "drained", file = "", rounds = "200", seed = "1"] = process.argv.slice(2);

/** Mulberry32, so that a round that fails can be repeated. */
let state = Number(seed);
function random(): number {
  state = (state + 0x6d2b79f5) | 0;
  let bits = Math.imul(state ^ (state >>> 15), 1 | state);
  bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
  return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
}

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const SAMPLING: Sampling = {
  maxTokens: 20,
  temperature: 0.8,
  topK: 40,
  topP: 0.95,
  minP: 0.05,
  seed: 1,
  stop: [],
  repeatPenalty: 1.1,
};

const counts: Record<string, number> = {};
function count(outcome: string): void {
  counts[outcome] = (counts[outcome] ?? 0) + 1;
}

function request(signal: AbortSignal = new AbortController().signal): BackingRequest {
  return { id: "bench", signal, phase: "load" };
}

/** Everything that a backing of this profile can be asked for, at once. */
function load(backing: Backing): Promise<unknown>[] {
  const leaving = new AbortController();
  setTimeout(() => leaving.abort(new Error("left")), random() * 20);
  return [
    ...Array.from({ length: 5 }, () =>
      backing.generate?.("hello world ".repeat(1 + Math.floor(random() * 60)), SAMPLING, request()),
    ),
    backing.generate?.("hello", SAMPLING, request(leaving.signal)),
    backing.chat?.([{ role: "user", content: "hello" }], SAMPLING, request()),
    ...Array.from({ length: 4 }, () =>
      backing.embed?.(Array<string>(30).fill("hello world the cat"), "refuse", request()),
    ),
  ].flatMap((promise) => (promise === undefined ? [] : [promise]));
}

async function drainedRound(backend: ReturnType<typeof nodeLlamaCpp>, model: ResolvedModel): Promise<void> {
  const profile: ModelProfile = {
    mode: random() < 0.7 ? "server" : "direct",
    capabilities: ["generate", "chat", "embed"],
    contextSize: 1024,
    parallel: 1 + Math.floor(random() * 4),
    threads: 1,
    maxQueue: 4,
  };
  const controller = new AbortController();
  const spec = { modelId: "bench", incarnation: 1, model, profile, gpuLayers: 0 };
  const starting = backend.start(spec, { signal: controller.signal, maxThreads: 1, onProgress: () => undefined });
  if (random() < 0.2) setTimeout(() => controller.abort(new Error("load aborted")), random() * 25);
  let backing: Backing;
  try {
    backing = await starting;
  } catch {
    return count("load aborted");
  }
  const calls = load(backing);
  const settled = Promise.allSettled(calls);
  await pause(random() * 120);
  await backing.dispose();
  for (const { status } of await settled) count(status);
  count(`exited: ${(await backing.exited).reason}`);
}

/** What this library guards against: the raw objects, disposed under a running embedding. */
async function undrainedRound(): Promise<void> {
  const llama = await sharedEngine({ gpu: "auto", build: "never" });
  const native = await llama.loadModel({ modelPath: file, gpuLayers: 0 });
  const context = await native.createEmbeddingContext({ contextSize: 512, threads: 1 });
  const settled = Promise.allSettled(
    Array.from({ length: 30 }, () => context.getEmbeddingFor("hello world the cat ".repeat(5))),
  );
  await pause(random() * 10);
  await native.dispose();
  for (const { status } of await settled) count(status);
}

const backend = nodeLlamaCpp();
const model = await backend.resolve(file, {}, new AbortController().signal);
for (let round = 0; round < Number(rounds); round++) {
  if (mode === "drained") await drainedRound(backend, model);
  else await undrainedRound();
  count("rounds");
}
const { cpuRam } = await (await sharedEngine({ gpu: "auto", build: "never" })).getLlamaMemoryUsage();
process.send?.({ ...counts, bytesLeft: cpuRam });
// That the process then ends by itself is a part of the result.
process.disconnect();
