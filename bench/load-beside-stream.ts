/**
 * What the load of another model costs a stream that runs, against the same stream undisturbed, in turn: one load in the time
 * of 512 tokens; and the worst there is, loads and unloads without a pause, beside those of the bare library, whose own
 * part cannot be mended here.
 */
import { ModelSupervisor, nodeLlamaCpp } from "../src/index.js";
import type { ModelManager } from "../src/index.js";
import { sharedEngine } from "../src/backends/node-llama-cpp/engine.js";
import { alternate, isQuick, median, percentile, speed } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";
import type { BenchModel } from "./support/models.js";

const STREAMING: BenchModel = "small-f16";
const LOADING: BenchModel[] = ["large-f16", "small-f16-other"];
const TOKENS = isQuick ? 64 : 512;
const ROUNDS = { rounds: isQuick ? 2 : 7, warmUp: 1 };
const LEAST = 0.9;
const SLOTS = 4;
const OPTIONS = { contextSize: 1024, parallel: 1 } as const;

export async function loadBesideStream(): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const maxThreads of [1, 2]) {
    await using models = await ModelSupervisor.start({
      name: `load-beside-stream ${maxThreads}`,
      backend: nodeLlamaCpp({ calibrationFile: false }),
      memoryBudget: "unlimited",
      maxThreads,
    });
    // one thread for the stream: more of them slow a model of this size down
    await models.load("streaming", await benchModel(STREAMING), { ...OPTIONS, threads: 1 });
    for (const file of LOADING) figures.push(...(await beside(models, file, maxThreads)));
  }
  return figures;
}

async function beside(models: ModelManager, name: BenchModel, maxThreads: number): Promise<Figure[]> {
  const file = await benchModel(name);
  const gaps = { alone: [] as number[], once: [] as number[], managed: [] as number[], bare: [] as number[] };
  const loadMs: number[] = [];
  const llama = await sharedEngine({ gpu: "auto", build: "never" });
  const during = (load: () => Promise<unknown>, to: number[]) => async () => {
    const over = new AbortController();
    const loading = (async () => {
      while (!over.signal.aborted) await load();
    })();
    const rate = await stream(models, to);
    over.abort();
    await loading;
    return rate;
  };
  const besideOne = (load: () => Promise<unknown>, to: number[]) => async () => {
    const loading = load();
    const rate = await stream(models, to);
    await loading;
    return rate;
  };
  const managed = async () => {
    const began = performance.now();
    await models.load("other", file, { ...OPTIONS, parallel: SLOTS, threads: 1 });
    loadMs.push(performance.now() - began);
    await models.unload("other");
  };
  const bare = async () => {
    const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 });
    const context = await model.createContext({ contextSize: OPTIONS.contextSize, sequences: SLOTS, threads: 1 });
    await context.dispose();
    await model.dispose();
  };
  const rates = await alternate(ROUNDS, {
    alone: () => stream(models, gaps.alone),
    once: besideOne(managed, gaps.once),
    managed: during(managed, gaps.managed),
    bare: during(bare, gaps.bare),
  });
  const secondsOf = (all: readonly number[]) => all.reduce((sum, rate) => sum + TOKENS / rate, 0);
  const lostMs = ((secondsOf(rates.once) - secondsOf(rates.alone)) / ROUNDS.rounds) * 1_000;
  const told = `a stream of ${TOKENS} tokens of ${STREAMING}, maxThreads ${maxThreads}, against undisturbed, while ${name} is loaded and unloaded`;
  return [
    speed(`${told} once (${lostMs.toFixed(0)} ms lost)`, rates.once, rates.alone, LEAST),
    speed(
      `${told} without a pause (${loadMs.length} loads, median ${median(loadMs).toFixed(0)} ms)`,
      rates.managed,
      rates.alone,
    ),
    speed("the same by the bare library", rates.bare, rates.alone),
    {
      figure: "time between two pieces of the same",
      target: "stated",
      measured: `p50 ${shown(gaps.managed, 0.5)}, p99 ${shown(gaps.managed, 0.99)}, most ${shown(gaps.managed, 1)} ms (undisturbed ${shown(gaps.alone, 0.5)}, ${shown(gaps.alone, 0.99)}, ${shown(gaps.alone, 1)})`,
      met: undefined,
    },
  ];
}

function shown(values: readonly number[], share: number): string {
  return percentile(values, share).toFixed(1);
}

let streams = 0;

/** Tokens/s of a greedy stream that is read as it comes; the time between its pieces goes to `gaps`. */
async function stream(models: ModelManager, gaps: number[]): Promise<number> {
  const options = { maxTokens: TOKENS, temperature: 0, scope: `stream ${streams++}` };
  const began = performance.now();
  const running = models.stream("streaming", "the cat is blue and", options);
  let last = began;
  for await (const _ of running) {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
  }
  const { usage } = await running.result;
  if (usage.completionTokens !== TOKENS) throw new Error(`${TOKENS} tokens were wanted: ${JSON.stringify(usage)}`);
  return TOKENS / ((performance.now() - began) / 1000);
}
