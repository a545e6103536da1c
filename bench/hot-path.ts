/** What a request costs before and after the backing: no event, no await, a table read and two atomic additions. */
import { ModelSupervisor } from "../src/index.js";
import type { Clock, ModelManager } from "../src/index.js";
import { hold } from "../src/manager/model-target.js";
import { FakeBackend } from "../src/testing/index.js";
import { interleave, median } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { readyTable } from "./support/ready-table.js";

const CALLS = 1_000_000;
const ROUNDS = 15;
const MODELS = 50;

export async function hotPath(): Promise<Figure[]> {
  return [...(await tablePath()), await callToBacking()];
}

/** The table as the manager has it, with fifty ready models; the clock is the system's. */
async function tablePath(): Promise<Figure[]> {
  const clock: Clock = { now: () => Date.now(), setTimeout: () => undefined, clearTimeout: () => undefined };
  const { table, ids } = await readyTable(MODELS);
  let found = 0;
  const path = () => {
    for (let call = 0; call < CALLS; call++) {
      const held = hold(table, ids[call % MODELS] ?? "", clock.now());
      held?.live.block.release(clock.now());
    }
  };
  const lookup = () => {
    for (let call = 0; call < CALLS; call++) if (table.get(ids[call % MODELS] ?? "") !== undefined) found += 1;
  };
  const empty = () => {
    for (let call = 0; call < CALLS; call++) if (ids[call % MODELS] !== undefined) found += 1;
  };
  await interleave(3, { path, lookup, empty });
  const times = await interleave(ROUNDS, { path, lookup, empty });
  const nanoseconds = (values: readonly number[]) => (median(values) / CALLS) * 1e6;
  if (found === 0) throw new Error("nothing was found");
  const [pathNs, lookupNs] = [nanoseconds(times.path), nanoseconds(times.lookup)];
  return [
    {
      figure: `resolve id, acquire, stamp last use, release (${MODELS} models)`,
      target: "≤ 150 ns median",
      measured: `${pathNs.toFixed(0)} ns (loop and id choice included: ${nanoseconds(times.empty).toFixed(0)} ns)`,
      met: pathNs <= 150,
    },
    { figure: "table lookup alone", target: "≤ 40 ns", measured: `${lookupNs.toFixed(0)} ns`, met: lookupNs <= 40 },
  ];
}

/** From the call of `generate` to the entry of the backing. */
async function callToBacking(): Promise<Figure> {
  const backend = new FakeBackend();
  await using models: ModelManager = await ModelSupervisor.start({ name: "bench", backend, memoryBudget: "unlimited" });
  await models.load("m", "m.gguf");
  using lease = await models.acquire("m");
  const native = lease.native;
  if (native === undefined) throw new Error("no backing");
  let entered = 0;
  const [backing] = backend.backings();
  if (backing === undefined) throw new Error("no backing");
  backing.generate = (_prompt, _sampling, request) => {
    entered = performance.now();
    return Promise.resolve({
      text: request.id,
      finishReason: "stop",
      usage: { promptTokens: 0, completionTokens: 0, cachedTokens: 0 },
      timings: { queueMs: 0, prefillMs: 0, decodeMs: 0, timeToFirstTokenMs: 0 },
    });
  };
  const times: number[] = [];
  for (let call = 0; call < 20_000; call++) {
    const began = performance.now();
    await models.generate("m", "hello");
    times.push((entered - began) * 1000);
  }
  const microseconds = median(times.slice(5_000));
  return {
    figure: "`generate()` call to backing entry, fake backend",
    target: "≤ 5 µs median",
    measured: `${microseconds.toFixed(2)} µs`,
    met: microseconds <= 5,
  };
}
