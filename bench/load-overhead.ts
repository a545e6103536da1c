/** A load through the manager against the bare library, on one file in one process. */
import type { getLlama } from "node-llama-cpp";
import { ModelSupervisor, nodeLlamaCpp } from "../src/index.js";
import { benchModel } from "./support/models.js";
import { interleave, median } from "./support/measure.js";
import type { Figure } from "./support/measure.js";

const ROUNDS = 15;
const OPTIONS = { contextSize: 512, parallel: 4 } as const;

export async function loadOverhead(): Promise<Figure[]> {
  const file = await benchModel("small-f16");
  const backend = nodeLlamaCpp();
  await using models = await ModelSupervisor.start({
    name: "load-overhead",
    backend,
    memoryBudget: "unlimited",
    maxThreads: 1,
  });
  // one engine for both sides: a second instance would share the library's global state with the first
  using lease = await models.load("warm", file, OPTIONS).then(() => models.acquire("warm"));
  const llama = engineOf(lease.native);

  const bare = async () => {
    const model = await llama.loadModel({ modelPath: file });
    const context = await model.createContext({
      sequences: OPTIONS.parallel,
      contextSize: OPTIONS.contextSize,
      threads: 1,
    });
    bareTimes.push(performance.now() - began);
    await context.dispose();
    await model.dispose();
  };
  const managed = async () => {
    await models.load("m", file, OPTIONS);
    managedTimes.push(performance.now() - began);
    await models.unload("m");
  };
  const bareTimes: number[] = [];
  const managedTimes: number[] = [];
  const planTimes: number[] = [];
  let began = 0;
  const timed = (run: () => Promise<void>) => async () => {
    began = performance.now();
    await run();
  };
  const plan = timed(async () => {
    await models.plan(file, OPTIONS);
    planTimes.push(performance.now() - began);
  });
  await interleave(ROUNDS, { bare: timed(bare), managed: timed(managed), plan });

  const [bareMs, managedMs, planMs] = [bareTimes, managedTimes, planTimes].map((times) => median(times.slice(3)));
  if (bareMs === undefined || managedMs === undefined || planMs === undefined) throw new Error("nothing was measured");
  const extra = managedMs - bareMs - planMs;
  return [
    {
      figure: "load through the manager against bare `loadModel` + `createContext`, 54 MB file, the estimate apart",
      target: "≤ 10 ms more",
      measured: `${extra.toFixed(1)} ms more (bare ${bareMs.toFixed(1)}, managed ${managedMs.toFixed(1)}, of which checking and estimating ${planMs.toFixed(1)})`,
      met: extra <= 10,
    },
  ];
}

function engineOf(native: unknown): Awaited<ReturnType<typeof getLlama>> {
  if (typeof native === "object" && native !== null && "llama" in native)
    return native.llama as Awaited<ReturnType<typeof getLlama>>;
  throw new Error("the lease has no engine");
}
