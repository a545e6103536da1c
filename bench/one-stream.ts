/** One stream through the manager against what the bare library gives for it: tokens/s of 128 tokens, one thread. */
import { BareModel } from "./support/bare-loops.js";
import { Managed, roundsOf, shortPrompts } from "./support/managed.js";
import { alternate, speed } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";
import type { BenchModel } from "./support/models.js";

const FILES: BenchModel[] = ["tiny-f32", "small-f16"];
/** Room for the system prompt that the library's chat begins with. */
const CONTEXT_SIZE = 512;
const LEAST_OF_LOOP = 0.97;
/** On the smallest file, where what the library itself does counts most. */
const LEAST_OF_COMPLETION = { file: "tiny-f32", least: 1.05 } as const;
const LEAST_OF_CHAT = { file: "tiny-f32", least: 1.4 } as const;

let readLength = 0;
const read = (text: string) => {
  readLength += text.length;
};

export async function oneStream(): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const file of FILES) {
    const source = await benchModel(file);
    await using managed = await Managed.load(source, { maxThreads: 1, parallel: 1, contextSize: CONTEXT_SIZE });
    await using model = await BareModel.load(source);
    const bare = await model.loops(1, CONTEXT_SIZE);
    const prompts = shortPrompts(1);
    const [prompt = ""] = prompts;
    const rates = await alternate(roundsOf(file), {
      generate: () => managed.generate(prompts),
      loop: () => bare.free(prompts),
      completion: () => bare.completion(prompt),
      stream: () => managed.stream(prompts, read),
      chunkedCompletion: () => bare.completion(prompt, read),
      chat: () => managed.chat(prompts),
      session: () => bare.chat(prompt, undefined),
      plainSession: () => bare.chat(prompt, ""),
    });
    const leastOf = (limit: { readonly file: string; readonly least: number }) =>
      limit.file === file ? limit.least : undefined;
    figures.push(
      speed(`one stream against a bare \`sequence.evaluate\` loop, ${file}`, rates.generate, rates.loop, LEAST_OF_LOOP),
      speed(
        `one stream against \`LlamaCompletion\`, ${file}`,
        rates.generate,
        rates.completion,
        leastOf(LEAST_OF_COMPLETION),
      ),
      speed(
        `the same, both giving their text as it comes (\`stream\`, \`onTextChunk\`), ${file}`,
        rates.stream,
        rates.chunkedCompletion,
        leastOf(LEAST_OF_COMPLETION),
      ),
      speed(
        `one chat against \`LlamaChatSession\` as each comes, ${file}`,
        rates.chat,
        rates.session,
        leastOf(LEAST_OF_CHAT),
      ),
      speed(`the same without that one's system prompt, ${file}`, rates.chat, rates.plainSession),
    );
  }
  if (readLength === 0) throw new Error("No text came");
  return figures;
}
