/** A load through the manager against the bare library, on one file in one process. */
import type { getLlama } from "node-llama-cpp";
import { ModelSupervisor, nodeLlamaCpp } from "../src/index.js";
import { benchModel } from "./support/models.js";
import { interleave, median } from "./support/measure.js";
import type { Figure } from "./support/measure.js";

const ROUNDS = 30;
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
  await models.load("warm", await benchModel("tiny-f32"), OPTIONS); // another file, whose weights are not shared
  using lease = await models.acquire("warm");
  const llama = engineOf(lease.native);

  const loadBare = async () => {
    const model = await llama.loadModel({ modelPath: file });
    const context = await model.createContext({
      sequences: OPTIONS.parallel,
      contextSize: OPTIONS.contextSize,
      threads: 1,
    });
    return async () => {
      await context.dispose();
      await model.dispose();
    };
  };
  const times = { bare: [] as number[], planned: [] as number[], managed: [] as number[] };
  const timed = (name: keyof typeof times, load: () => Promise<() => Promise<void>>) => async () => {
    const began = performance.now();
    const unload = await load();
    times[name].push(performance.now() - began);
    await unload();
  };
  await interleave(ROUNDS, {
    bare: timed("bare", loadBare),
    // the estimate costs more than its own time: the engine still clears up after it while it loads
    planned: timed("planned", async () => {
      await models.plan(file, OPTIONS);
      return loadBare();
    }),
    managed: timed("managed", async () => {
      await models.load("m", file, OPTIONS);
      return () => models.unload("m");
    }),
  });

  const [bare, planned, managed] = [times.bare, times.planned, times.managed].map((all) => median(all.slice(6)));
  if (bare === undefined || planned === undefined || managed === undefined) throw new Error("nothing was measured");
  const extra = managed - planned;
  return [
    {
      figure:
        "load through the manager against the check and estimate followed by bare `loadModel` + `createContext`, 54 MB file",
      target: "≤ 10 ms more",
      measured: `${extra.toFixed(1)} ms more (bare ${bare.toFixed(1)}, with check and estimate before it ${planned.toFixed(1)}, managed ${managed.toFixed(1)})`,
      met: extra <= 10,
    },
  ];
}

function engineOf(native: unknown): Awaited<ReturnType<typeof getLlama>> {
  if (typeof native === "object" && native !== null && "llama" in native)
    return native.llama as Awaited<ReturnType<typeof getLlama>>;
  throw new Error("the lease has no engine");
}
