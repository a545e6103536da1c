/** A model whose answer depends on what stands anywhere in its context, by a wide margin. */
import { writeGguf, type FileOptions, type WrittenFiles } from "./gguf-writer.js";
import { handSetLlama, type HandSetAttention } from "./llama-layout.js";
import { Matrix } from "./matrix.js";
import { refuseUnknownOptions, requireInteger } from "./options.js";
import { addRecitation } from "./recitation.js";
import { SPACE, spmTokenizer, spmVocabulary, type Vocabulary } from "./vocabulary.js";

/** The words that the model of {@link makeRecallModel} knows. None is how another everyday word begins. */
export const recallKeys: readonly string[] = (
  "amber anchor basil bronze cactus cedar comet copper coral crystal falcon garnet ginger harbor indigo jasmine " +
  "kettle lantern lemon magnet maple nectar olive orchid pepper pigeon rocket saffron tulip velvet walnut zebra"
).split(" ");

/** Options of {@link makeRecallModel}. */
export interface RecallModelOptions extends FileOptions {
  /** Tokens that the model claims to be trained for. @defaultValue 8192 */
  readonly contextLength?: number;
  /** What its answers begin with, before the key: three words, so that several models can be told apart. @defaultValue "your word is" */
  readonly opening?: string;
}

// What the numbers of a state mean: kind of token, flags, the key a token is, the key that attention found.
const EVERY = 0;
const KEY = 1;
const BEGIN = 2;
const OPENING_WORDS = 3;
const SAID = 3; // and those after it: which word of the answer was said last, the opening's or the one that follows
const IS_KEY = SAID + OPENING_WORDS + 1;
const FOUND = IS_KEY + recallKeys.length;
const LENGTH = 128;

/**
 * Writes a generative model that answers any prompt or ChatML chat with `your word is KEY`, KEY being the one of
 * {@link recallKeys} that stands in its context (in lower case), or with `your word is nothing`; then it ends. The key comes out of the KV cache and from nowhere else, so a lost, stale or foreign state shows in the answer,
 * at any temperature and in any batch. Put one key into a conversation: of several, any may come.
 *
 * @throws TypeError naming the option that is wrong.
 */
export async function makeRecallModel(file: string, options: RecallModelOptions = {}): Promise<WrittenFiles> {
  refuseUnknownOptions(options, ["contextLength", "opening"]);
  const { contextLength = 8192, opening = "your word is" } = options;
  requireInteger("contextLength", contextLength);

  const vocabulary = spmVocabulary(recallKeys);
  const keyTokens = recallKeys.map((key) => [vocabulary.id(SPACE + key), addBareWord(vocabulary, key)]);
  const promptTokens = vocabulary.size;
  const words = addRecitation(vocabulary, opening);
  if (words.length !== OPENING_WORDS)
    throw new TypeError(
      `The option "opening" must be ${OPENING_WORDS} different words, not ${JSON.stringify(opening)}`,
    );
  const keyAnswers = recallKeys.flatMap((key) => addRecitation(vocabulary, ` ${key}`));
  const nothing = addRecitation(vocabulary, " nothing");

  const embedding = new Matrix(vocabulary.size, LENGTH);
  for (let token = 0; token < vocabulary.size; token++) embedding.set(token, EVERY, 1);
  for (let token = 0; token < promptTokens; token++) embedding.set(token, BEGIN, 1);
  keyTokens.forEach((tokens, index) => {
    for (const token of tokens) embedding.set(token, KEY, 1).set(token, IS_KEY + index, 1);
  });
  words.forEach((token, index) => embedding.set(token, SAID + index, 1));
  for (const token of [...keyAnswers, ...nothing]) embedding.set(token, SAID + words.length, 1);

  const output = answerWeights(vocabulary, words, keyAnswers, nothing);
  return writeGguf(
    file,
    handSetLlama({
      name: "recall",
      contextLength,
      tokenizer: spmTokenizer(vocabulary),
      embedding,
      output,
      attention: keyAttention(),
      // the head's slowest pair turns by 1e-12 per token: distance does not matter
      ropeBase: 1e12,
    }),
    options,
  );
}

/**
 * A word for where no space stands before it: after a quote or a line break. SPM joins the pair of the highest score
 * first; as longer pieces have higher ones, a key that has been begun is finished before another is begun inside it.
 */
function addBareWord(vocabulary: Vocabulary, word: string): number {
  for (let length = 2; length <= word.length; length++) vocabulary.add(word.slice(0, length), "normal", -500 + length);
  return vocabulary.id(word);
}

/**
 * In units of the state's numbers: the next word of the answer 6; a key 2 and another 3 if it was found; "nothing" 3. So
 * where a key is due the found one leads "nothing" by 2, without one "nothing" leads by 1, and a key found cannot
 * interrupt. One unit is 20, which leaves even a temperature of 2 no choice.
 */
function answerWeights(vocabulary: Vocabulary, words: number[], keyAnswers: number[], nothing: number[]): Matrix {
  const unit = 20;
  const output = new Matrix(vocabulary.size, LENGTH);
  words.forEach((token, index) => output.set(token, index === 0 ? BEGIN : SAID + index - 1, 6 * unit));
  const last = SAID + words.length - 1;
  keyAnswers.forEach((token, index) => output.set(token, last, 2 * unit).set(token, FOUND + index, 3 * unit));
  for (const token of nothing) output.set(token, last, 3 * unit);
  output.set(vocabulary.id("</s>"), SAID + words.length, 6 * unit);
  return output;
}

/** Every token looks for key tokens and brings home which key it was; with none in sight it brings home zeros. */
function keyAttention(): HandSetAttention {
  const slowest = LENGTH - 2;
  const query = new Matrix(LENGTH, LENGTH).set(slowest, EVERY, 4);
  const key = new Matrix(LENGTH, LENGTH).set(slowest, KEY, 4);
  const value = new Matrix(LENGTH, LENGTH);
  const output = new Matrix(LENGTH, LENGTH);
  recallKeys.forEach((_, index) => {
    value.set(index, IS_KEY + index, 0.2);
    output.set(FOUND + index, index, 1);
  });
  return { heads: 1, headLength: LENGTH, query, key, value, output };
}
