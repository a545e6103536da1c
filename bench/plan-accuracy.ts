/** What `plan()` says before a load against what the engine reports after it. */
import { ModelSupervisor } from "../src/index.js";
import type { ModelOptions, Placement } from "../src/index.js";
import { benchModel } from "./support/models.js";
import type { BenchModel } from "./support/models.js";
import type { Figure } from "./support/measure.js";

const CASES: [BenchModel, string, ModelOptions][] = [
  ["tiny-f32", "server", { contextSize: 512, parallel: 4 }],
  ["tiny-f32", "direct", { mode: "direct", contextSize: 512 }],
  ["small-f16", "server", { contextSize: 1024, parallel: 4 }],
  ["small-f16", "direct", { mode: "direct", contextSize: 1024 }],
  ["small-f16", "server + embed", { mode: "server", capabilities: ["generate", "embed"], contextSize: 1024 }],
  ["large-f16", "server", { contextSize: 2048, parallel: 4 }],
  ["large-f16", "direct", { mode: "direct", contextSize: 2048 }],
  ["embed-tiny", "direct, embed", {}],
  ["embed-small", "direct, embed", {}],
  ["small-q4_0", "server, repacked by the engine", { contextSize: 1024, parallel: 4 }],
];

export async function planAccuracy(): Promise<Figure[]> {
  await using models = await ModelSupervisor.start({ name: "plan", memoryBudget: "unlimited", maxThreads: 1 });
  const figures: Figure[] = [];
  for (const [name, label, options] of CASES) {
    const file = await benchModel(name);
    const planned = total((await models.plan(file, options)).placement);
    const reported = total((await models.load("m", file, options)).placement);
    await models.unload("m");
    const difference = (planned - reported) / reported;
    const repacked = name === "small-q4_0";
    figures.push({
      figure: `\`plan()\` against the engine's report: ${name}, ${label}`,
      target: repacked ? "stated" : "within 1 %",
      measured: `${(planned / 2 ** 20).toFixed(1)} against ${(reported / 2 ** 20).toFixed(1)} MiB (${(100 * difference).toFixed(2)} %)`,
      met: repacked ? undefined : Math.abs(difference) <= 0.01,
    });
  }
  return figures;
}

function total(placement: Placement): number {
  return Object.values(placement).reduce<number>((sum, bytes) => sum + (bytes ?? 0), 0);
}
