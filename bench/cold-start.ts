/**
 * The first request of a lazy model against what it takes at least: the bare library's load and first token, and what the
 * backend does for a load. In one process, in turn; the file is in the page cache.
 */
import { ModelSupervisor, nodeLlamaCpp } from "../src/index.js";
import type { ModelProfile } from "../src/backends/backend.js";
import { sharedEngine } from "../src/backends/node-llama-cpp/engine.js";
import { alternate, isQuick, median } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";

const ROUNDS = { rounds: isQuick ? 3 : 30, warmUp: 5 };
const CONTEXT_SIZE = 512;
const PARALLEL = 4;
const PROMPT = "the cat is blue and";
const FIRST_TOKEN = { maxTokens: 1, temperature: 0 } as const;
const MOST_OWN_MS = 10;

const PROFILE: ModelProfile = {
  mode: "server",
  capabilities: ["generate", "chat"],
  contextSize: CONTEXT_SIZE,
  parallel: PARALLEL,
  threads: 1,
  maxQueue: 64,
};

export async function coldStart(): Promise<Figure[]> {
  const file = await benchModel("small-f16");
  const backend = nodeLlamaCpp({ calibrationFile: false });
  const llama = await sharedEngine({ gpu: "auto", build: "never" });
  await using models = await ModelSupervisor.start({
    name: "cold-start",
    backend,
    memoryBudget: "auto",
    maxThreads: 1,
  });
  await models.register("m", file, { contextSize: CONTEXT_SIZE, parallel: PARALLEL });

  const bare = async () => {
    const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 });
    const context = await model.createContext({ sequences: PARALLEL, contextSize: CONTEXT_SIZE, threads: 1 });
    for await (const _ of context.getSequence().evaluate(model.tokenize(PROMPT), { temperature: 0 })) break;
    return async () => {
      await context.dispose();
      await model.dispose();
    };
  };
  const backed = async () => {
    const { signal } = new AbortController();
    const model = await backend.resolve(file, {}, signal);
    const { gpuLayers } = await backend.estimate(model, PROFILE);
    await backend.devices();
    const spec = { modelId: "bare", incarnation: 1, model, profile: PROFILE, gpuLayers };
    const backing = await backend.start(spec, { signal, maxThreads: 1 });
    await backend.devices();
    const sampling = { ...FIRST_TOKEN, topK: 40, topP: 0.95, minP: 0.05, seed: undefined, stop: [], repeatPenalty: 1 };
    await backing.generate?.(PROMPT, sampling, { id: "first", signal, phase: "queue" });
    return () => backing.dispose();
  };
  const managed = async () => {
    await models.generate("m", PROMPT, FIRST_TOKEN);
    return () => models.unload("m");
  };
  const timed = (start: () => Promise<() => Promise<void>>) => async () => {
    const began = performance.now();
    const end = await start();
    const ms = performance.now() - began;
    await end();
    return ms;
  };
  const times = await alternate(ROUNDS, { bare: timed(bare), backed: timed(backed), managed: timed(managed) });

  const own = median(times.managed.map((ms, round) => ms - (times.backed[round] ?? NaN)));
  const more = median(times.managed.map((ms, round) => ms - (times.bare[round] ?? NaN)));
  return [
    {
      figure:
        "first request of a lazy model, 54 MB file, against a bare `loadModel`, `createContext` and first token (its file is looked at and what it needs is estimated besides)",
      target: "stated",
      measured: `${more.toFixed(1)} ms more (${median(times.managed).toFixed(1)} against ${median(times.bare).toFixed(1)} ms)`,
      met: undefined,
    },
    {
      figure: "the manager's own share of it: against the same calls of the backend without a manager",
      target: `≤ ${MOST_OWN_MS} ms`,
      measured: `${own.toFixed(1)} ms (the backend alone ${median(times.backed).toFixed(1)} ms)`,
      met: own <= MOST_OWN_MS,
    },
  ];
}
