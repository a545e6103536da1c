/** The second turn of a long conversation against the same prompt evaluated from the start: time to the first token. */
import { ModelSupervisor } from "../src/index.js";
import { benchModel } from "./support/models.js";
import { interleave, median } from "./support/measure.js";
import type { Figure } from "./support/measure.js";

const ROUNDS = 9;
/** The first of them warm up. */
const WARM_UP = 2;
const CONVERSATION_TOKENS = 900;
const OPTIONS = { maxTokens: 16, temperature: 0 } as const;
const MOST = 0.15;

export async function prefixReuse(): Promise<Figure[]> {
  const file = await benchModel("small-f16");
  await using models = await ModelSupervisor.start({
    name: "prefix-reuse",
    memoryBudget: "unlimited",
    maxThreads: 1,
  });
  await models.load("m", file, { contextSize: 2048, parallel: 2 });
  const sentence = "the cat is blue and the dog is not. ";
  const perSentence = (await models.tokenize("m", sentence.repeat(8))).length / 8;
  const opening = sentence.repeat(Math.round(CONVERSATION_TOKENS / perSentence));

  const firstToken = { cold: [] as number[], warm: [] as number[] };
  const texts = { cold: [] as string[], warm: [] as string[] };
  const cached: number[] = [];
  let promptTokens = 0;
  let round = 0;
  const secondTurn = async (name: "cold" | "warm", prompt: string, scope: string) => {
    const { text, timings, usage } = await models.generate("m", prompt, { ...OPTIONS, scope });
    firstToken[name].push(timings.timeToFirstTokenMs);
    texts[name].push(text);
    promptTokens = usage.promptTokens;
    if (name === "warm") cached.push(usage.cachedTokens);
    else if (usage.cachedTokens > 0) throw new Error("The cold run was not cold");
  };
  const { text: answer } = await models.generate("m", opening, { ...OPTIONS, scope: "before" });
  const prompt = `${opening}${answer} And what came then?`;
  await interleave(ROUNDS, {
    cold: () => secondTurn("cold", prompt, `cold ${round++}`),
    warm: async () => {
      const scope = `warm ${round++}`;
      await models.generate("m", opening, { ...OPTIONS, scope });
      await secondTurn("warm", prompt, scope);
    },
  });

  const [cold, warm] = [firstToken.cold, firstToken.warm].map((all) => median(all.slice(WARM_UP)));
  if (cold === undefined || warm === undefined) throw new Error("nothing was measured");
  const same = texts.warm.filter((text, index) => text === texts.cold[index]).length;
  return [
    {
      figure: `second turn of a ${CONVERSATION_TOKENS}-token conversation (${promptTokens} tokens), small-f16: first token`,
      target: `≤ ${MOST} × cold`,
      measured: `${(warm / cold).toFixed(3)} × (${warm.toFixed(1)} against ${cold.toFixed(1)} ms, ${median(cached)} tokens reused)`,
      met: warm / cold <= MOST,
    },
    {
      figure: "its text against the cold one's",
      target: "the same",
      measured: `${same} of ${ROUNDS} the same`,
      met: same === ROUNDS,
    },
  ];
}
