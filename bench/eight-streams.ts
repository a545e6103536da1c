/** Eight streams through the manager against eight bare loops, left to run or stepped together; one thread. */
import { BareModel } from "./support/bare-loops.js";
import { Managed, roundsOf, shortPrompts } from "./support/managed.js";
import { alternate, speed } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";

const STREAMS = 8;
/** What is wanted against loops that run freely. */
const LEAST_OF_FREE = { "tiny-f32": 1.15, "small-f16": 1.2, "small-q4_0": 1.6 } as const;
const LEAST_OF_STEPPED = 0.97;

export async function eightStreams(): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const file of ["tiny-f32", "small-f16", "small-q4_0"] as const) {
    const source = await benchModel(file);
    await using managed = await Managed.load(source, { maxThreads: 1, parallel: STREAMS });
    await using model = await BareModel.load(source);
    const bare = await model.loops(STREAMS);
    const prompts = shortPrompts(STREAMS);
    const { ours, free, stepped } = await alternate(roundsOf(file), {
      ours: () => managed.generate(prompts),
      free: () => bare.free(prompts),
      stepped: () => bare.stepped(prompts),
    });
    figures.push(
      speed(`${STREAMS} streams against ${STREAMS} free-running bare loops, ${file}`, ours, free, LEAST_OF_FREE[file]),
      speed(`${STREAMS} streams against a bare stepped loop, ${file}`, ours, stepped, LEAST_OF_STEPPED),
    );
  }
  return figures;
}
