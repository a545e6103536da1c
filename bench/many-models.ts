/** What a thousand models cost that are known, or resident: memory, the lookup, the sweep. On the fake backend. */
import { ModelSupervisor } from "../src/index.js";
import type { ModelManager } from "../src/index.js";
import { FakeBackend, SimulatedClock } from "../src/testing/index.js";
import { collectGarbage } from "./support/garbage.js";
import { interleave, isQuick, median, percentile, ratio } from "./support/measure.js";
import type { Figure } from "./support/measure.js";

const MANY = 1_000;
const FEW = 10;
const MOST_MIB = 5;
/** Of a lookup in the larger table: its chains are longer. */
const MOST_MORE_NS = 25;
/** Of the time that a request takes with few models. */
const MOST_SLOWER = 1.1;
const MOST_SWEEP_MS = 1;

const LOOKUPS = 1_000_000;
const REQUESTS = 2_000;
const ROUNDS = isQuick ? 3 : 15;
const SWEEPS = isQuick ? 20 : 500;
const SWEEP_MS = 1_000;
/** Long after the last sweep of this benchmark. */
const TTL_MS = 1_000_000_000;

export async function manyModels(): Promise<Figure[]> {
  return [await heap(), ...(await speed()), await sweep()];
}

async function start(name: string): Promise<ModelManager> {
  return ModelSupervisor.start({ name, backend: new FakeBackend(), memoryBudget: "unlimited" });
}

async function registerAll(models: ModelManager, count: number): Promise<void> {
  await Promise.all(Array.from({ length: count }, (_, index) => models.register(`model-${index}`, "m.gguf")));
}

async function heap(): Promise<Figure> {
  await using models = await start("heap");
  await registerAll(models, FEW);
  for (let index = 0; index < FEW; index++) await models.remove(`model-${index}`);
  collectGarbage();
  const before = process.memoryUsage().heapUsed;
  await registerAll(models, MANY);
  collectGarbage();
  const mib = (process.memoryUsage().heapUsed - before) / 2 ** 20;
  if (models.list().length !== MANY) throw new Error("Not all of them are known");
  return {
    figure: `JavaScript heap of ${MANY} registered models`,
    target: `< ${MOST_MIB} MiB`,
    measured: `${mib.toFixed(2)} MiB (${((mib * 1024) / MANY).toFixed(2)} KiB each)`,
    met: mib < MOST_MIB,
  };
}

/** The same ids are asked for in one process: some of many that are known, and all of few. */
async function speed(): Promise<Figure[]> {
  await using many = await start("many");
  await using few = await start("few");
  const ids = Array.from({ length: FEW }, (_, index) => `model-${(index * MANY) / FEW}`);
  await registerAll(many, MANY);
  for (const id of ids) await few.register(id, "m.gguf");
  for (const models of [many, few]) for (const id of ids) await models.load(id);

  let found = 0;
  const lookUp = (models: ModelManager) => () => {
    for (let call = 0; call < LOOKUPS; call++) if (models.isLoaded(ids[call % FEW] ?? "")) found++;
  };
  const ask = (models: ModelManager) => async () => {
    for (let call = 0; call < REQUESTS; call++) await models.generate(ids[call % FEW] ?? "", "hello");
  };
  const cases = { manyLookups: lookUp(many), fewLookups: lookUp(few), manyRequests: ask(many), fewRequests: ask(few) };
  await interleave(3, cases);
  const times = await interleave(ROUNDS, cases);
  if (found === 0) throw new Error("Nothing was found");
  const nanoseconds = (ms: number) => (ms / LOOKUPS) * 1e6;
  const more = median(times.manyLookups.map((ms, round) => nanoseconds(ms - (times.fewLookups[round] ?? NaN))));
  const share = ratio(times.manyRequests, times.fewRequests);
  const microseconds = (all: readonly number[]) => `${((median(all) / REQUESTS) * 1e3).toFixed(1)} µs`;
  return [
    {
      figure: `\`isLoaded\` with ${MANY} registered models against ${FEW}`,
      target: `≤ ${MOST_MORE_NS} ns more`,
      measured: `${more.toFixed(0)} ns more (${nanoseconds(median(times.manyLookups)).toFixed(0)} against ${nanoseconds(median(times.fewLookups)).toFixed(0)} ns)`,
      met: more <= MOST_MORE_NS,
    },
    {
      figure: `\`generate\` with ${MANY} registered models against ${FEW}`,
      target: `≤ ${MOST_SLOWER} ×`,
      measured: `${share.toFixed(2)} × (${microseconds(times.manyRequests)} against ${microseconds(times.fewRequests)})`,
      met: share <= MOST_SLOWER,
    },
  ];
}

/** The whole tick: the timer, the mailbox, and a look at each model. None of them has expired. */
async function sweep(): Promise<Figure> {
  const clock = new SimulatedClock();
  await using models = await ModelSupervisor.start({
    name: "sweep",
    backend: new FakeBackend(),
    memoryBudget: "unlimited",
    clock,
    sweepIntervalMs: SWEEP_MS,
    defaultTtlMs: TTL_MS,
  });
  for (let index = 0; index < MANY; index++) await models.load(`model-${index}`, "m.gguf");
  const tick = () => {
    const began = performance.now();
    clock.increment(SWEEP_MS);
    return performance.now() - began;
  };
  for (let warmUp = 0; warmUp < 50; warmUp++) tick();
  const times = Array.from({ length: SWEEPS }, tick);
  // the control: what has expired goes, so each tick did look
  clock.increment(TTL_MS);
  if (models.list().some(({ status }) => status === "ready")) throw new Error("The sweep did not look at all of them");
  const middle = median(times);
  return {
    figure: `sweep over ${MANY} resident models with a TTL`,
    target: `< ${MOST_SWEEP_MS} ms`,
    measured: `${middle.toFixed(3)} ms (p95 ${percentile(times, 0.95).toFixed(3)})`,
    met: middle < MOST_SWEEP_MS,
  };
}
