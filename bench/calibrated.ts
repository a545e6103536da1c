/**
 * What measuring the model at its load is worth: contexts, threads and decode width as the manager chose them, against
 * the bare stepped loop on one context and one thread.
 */
import { BareModel } from "./support/bare-loops.js";
import { Managed, roundsOf, shortPrompts, TOKENS } from "./support/managed.js";
import { alternate, ratio, speed } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";
import type { BenchModel } from "./support/models.js";

const FEW = 8;
const MANY = 16;
/** All threads that this machine is to give. */
const MAX_THREADS = 2;
const LEAST = { "tiny-f32": 1, "small-f16": 1.3, "small-q4_0": 1, "large-f16": 1.5 } as const;
const FILES = ["tiny-f32", "small-f16", "small-q4_0", "large-f16"] as const satisfies BenchModel[];
/** On one thread: the mean of the files, and each of them. */
const LEAST_ON_ONE = { mean: 1.1, each: 0.97 };

export async function calibrated(): Promise<Figure[]> {
  const figures: Figure[] = [];
  const onOne: { readonly file: string; readonly share: number }[] = [];
  for (const file of FILES) {
    const source = await benchModel(file);
    // a round of the largest file takes a minute and a half otherwise
    const tokens = file === "large-f16" ? TOKENS / 2 : TOKENS;
    const load = (maxThreads: number, parallel: number) => Managed.load(source, { maxThreads, parallel });
    await using few = await load(MAX_THREADS, FEW);
    await using many = await load(MAX_THREADS, MANY);
    await using manyOnOne = await load(1, MANY);
    await using model = await BareModel.load(source);
    const bareFew = await model.loops(FEW);
    const bareMany = await model.loops(MANY);
    const prompts = { few: shortPrompts(FEW), many: shortPrompts(MANY) };
    const rates = await alternate(roundsOf(file), {
      few: () => few.generate(prompts.few, tokens),
      bareFew: () => bareFew.stepped(prompts.few, tokens),
      many: () => many.generate(prompts.many, tokens),
      bareMany: () => bareMany.stepped(prompts.many, tokens),
      manyOnOne: () => manyOnOne.generate(prompts.many, tokens),
    });
    figures.push({
      figure: `layouts chosen, ${file}`,
      target: "stated",
      measured: [few, many, manyOnOne].map(layoutOf).join("; "),
      met: undefined,
    });
    const told = `up to ${MAX_THREADS} threads, against a bare stepped loop on one, ${file}`;
    figures.push(
      speed(`${FEW} streams, ${told}`, rates.few, rates.bareFew, LEAST[file]),
      speed(`${MANY} streams, ${told}`, rates.many, rates.bareMany, LEAST[file]),
      speed(
        `${MANY} streams, one thread, against the same loop, ${file}`,
        rates.manyOnOne,
        rates.bareMany,
        LEAST_ON_ONE.each,
      ),
    );
    onOne.push({ file, share: ratio(rates.manyOnOne, rates.bareMany) });
  }
  const mean = onOne.reduce((sum, { share }) => sum + share, 0) / onOne.length;
  figures.push({
    figure: `the same, mean of the ${onOne.length} files`,
    target: `≥ ${LEAST_ON_ONE.mean} ×`,
    measured: `${mean.toFixed(2)} × (${onOne.map(({ file, share }) => `${file} ${share.toFixed(2)}`).join(", ")})`,
    met: mean >= LEAST_ON_ONE.mean,
  });
  return figures;
}

function layoutOf({ models }: Managed): string {
  const { parallel, layout } = models.info("m") ?? {};
  if (layout === undefined) return "none";
  return `${parallel} slots: ${layout.contexts} × ${layout.threadsPerContext} thread(s), width ${layout.decodeWidth} (${layout.chosenBy})`;
}
