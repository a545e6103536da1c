/** A language model of whole words: the next one by the last, the one before it, and what the text is about. */
import { writeGguf } from "../../src/testing/gguf/gguf-writer.js";
import { handSetLlama } from "../../src/testing/gguf/llama-layout.js";
import { Matrix } from "../../src/testing/gguf/matrix.js";
import { ugmTokenizer } from "../../src/testing/gguf/vocabulary.js";
import { factorize, type Factors } from "./factorize.js";
import { CODE_LENGTH, ROPE_BASE, wordAttention } from "./word-attention.js";
import { countWords, type WordStatistics } from "./word-statistics.js";

/** A constant that outweighs the rest of a state, so that the norm before the output scales all states alike. */
const BALLAST = 4;
/** Chance of a word that never followed the last one, relative to how frequent it is. */
const SURPRISE = 1e-4;
/** How much the token before the last one, and the topic, count beside the last one. */
const PREVIOUS_WEIGHT = 1;
const TOPIC_WEIGHT = 1.5;

/**
 * Writes the model. A state is the last token (one number for each), a code of the token before it and one of the topic,
 * both fetched by attention, and the ballast. The output weights hold logarithms of chances, so that a logit is their sum.
 */
export async function makeWordModel(file: string, paragraphs: readonly string[]): Promise<void> {
  const statistics = countWords(paragraphs);
  const { vocabulary, afterNext, topicOf, topics, importance } = statistics;
  const size = vocabulary.size;
  const previous = shortened(factorize(afterNext.information(size), CODE_LENGTH));
  const topic = shortened(factorize(topicOf.information(size, 10), CODE_LENGTH));
  const topicCodes = new Matrix(CODE_LENGTH, size);
  topics.forEach((representative, token) => {
    for (let i = 0; i < CODE_LENGTH; i++) topicCodes.set(i, token, topic.right.get(i, representative));
  });

  const codesAt = size;
  const ballastAt = size + 2 * CODE_LENGTH;
  const stateLength = Math.ceil((ballastAt + 1) / 32) * 32; // formats in blocks want whole ones
  // the norm divides a state by its root mean square
  const tokenValue = Math.sqrt(stateLength / (1 + BALLAST ** 2));

  const embedding = new Matrix(size, stateLength);
  for (let token = 0; token < size; token++) embedding.set(token, token, 1).set(token, ballastAt, BALLAST);

  const output = new Matrix(size, stateLength);
  setChances(output, statistics, ballastAt);
  for (let token = 0; token < size; token++) {
    for (let i = 0; i < CODE_LENGTH; i++) {
      output.set(token, codesAt + i, PREVIOUS_WEIGHT * previous.left.get(i, token));
      output.set(token, codesAt + CODE_LENGTH + i, TOPIC_WEIGHT * topic.left.get(i, token));
    }
  }
  output.values.forEach((value, i) => (output.values[i] = value / tokenValue));

  await writeGguf(
    file,
    handSetLlama({
      name: "model-supervisor demo words",
      contextLength: 4096,
      tokenizer: ugmTokenizer(vocabulary),
      embedding,
      output,
      attention: wordAttention({
        stateLength,
        tokenValue,
        previousCodes: previous.right,
        topicCodes,
        importance,
        codesAt,
      }),
      ropeBase: ROPE_BASE,
      format: "Q8_0",
    }),
  );
}

/** How likely each token is after each other one; where one never was, by its frequency alone, with the ballast's help. */
function setChances(output: Matrix, { next, frequencies }: WordStatistics, ballastAt: number): void {
  const total = frequencies.reduce((sum, frequency) => sum + frequency, 0);
  const unseen = frequencies.map((frequency) => (frequency === 0 ? -30 : Math.log((SURPRISE * frequency) / total)));
  unseen.forEach((logarithm, token) => output.set(token, ballastAt, logarithm / BALLAST));
  for (const { first, second, count, firstTotal } of next.pairs()) {
    output.set(second, first, Math.log(count / firstTotal) - (unseen[second] ?? 0));
  }
}

/** Makes the longest code one long, which keeps all codes small beside the ballast; the products stay the same. */
function shortened({ left, right }: Factors): Factors {
  const squared = new Float32Array(right.columns);
  for (let i = 0; i < right.rows; i++)
    right.row(i).forEach((value, token) => (squared[token] = (squared[token] ?? 0) + value ** 2));
  const longest = Math.sqrt(squared.reduce((most, value) => Math.max(most, value), 0)) || 1;
  return {
    left: new Matrix(
      left.rows,
      left.columns,
      left.values.map((value) => value * longest),
    ),
    right: new Matrix(
      right.rows,
      right.columns,
      right.values.map((value) => value / longest),
    ),
  };
}
