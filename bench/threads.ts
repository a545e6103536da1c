/** How many CPU threads one supervisor should use here: tokens/s by thread count, on a generation of one and of four streams. */
import { ModelSupervisor } from "../src/index.js";
import { allowedCpus, defaultMaxThreads } from "../src/process-limits.js";
import { benchModel } from "./support/models.js";
import type { BenchModel } from "./support/models.js";
import { median } from "./support/measure.js";
import type { Figure } from "./support/measure.js";

const FILES: BenchModel[] = ["tiny-f32", "small-f16", "large-f16"];
const TOKENS: Partial<Record<BenchModel, number>> = { "tiny-f32": 32, "small-f16": 16, "large-f16": 8 };
const ROUNDS = 3;

export async function threads(): Promise<Figure[]> {
  const cpus = Math.floor(allowedCpus());
  const counts = [...new Set([1, cpus, 4])];
  const figures: Figure[] = [];
  for (const file of FILES) {
    const source = await benchModel(file);
    const tokens = TOKENS[file] ?? 8;
    const rates = new Map<string, number[]>();
    for (let round = 0; round < ROUNDS; round++) {
      for (const count of counts) {
        // four threads on two CPUs spin against each other: one short round shows that
        const maxTokens = count > cpus ? 2 : tokens;
        if (count > cpus && (round > 0 || file !== "small-f16")) continue;
        await using models = await ModelSupervisor.start({
          name: "threads",
          memoryBudget: "unlimited",
          maxThreads: count,
        });
        await models.load("m", source, { contextSize: 256, parallel: 4, threads: count });
        for (const streams of [1, 4]) {
          const began = performance.now();
          const options = { maxTokens, temperature: 0 } as const;
          await Promise.all(Array.from({ length: streams }, () => models.generate("m", "the cat", options)));
          const key = `${count} thread(s), ${streams} stream(s)`;
          rates.set(key, [...(rates.get(key) ?? []), (streams * maxTokens * 1000) / (performance.now() - began)]);
        }
      }
    }
    const told = [...rates].map(([key, values]) => `${key}: ${median(values).toFixed(1)}`);
    figures.push({
      figure: `tokens/s by threads, ${file}, ${cpus} CPUs (default of maxThreads: ${defaultMaxThreads()})`,
      target: "stated",
      measured: told.join("; "),
      met: undefined,
    });
  }
  return figures;
}
