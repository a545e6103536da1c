/** An embedding model: sentences whose words keep the same company are close. */
import { bertContent, weightsOf, type BertLayer } from "../../src/testing/gguf/bert-layout.js";
import { writeGguf } from "../../src/testing/gguf/gguf-writer.js";
import { Matrix } from "../../src/testing/gguf/matrix.js";
import { bellShaped, seededRandom } from "../../src/testing/gguf/random.js";
import { SPACE, wpmTokenizer, wpmVocabulary } from "../../src/testing/gguf/vocabulary.js";
import { sentencesOf } from "./corpus.js";
import { factorize } from "./factorize.js";
import { byFrequency, PairCounts } from "./pair-counts.js";

const MOST_WORDS = 4000;
const MEANING = 94;
/** Behind the meaning, a pair (x, -x) that only fills a token's vector up to its length. */
const LENGTH = MEANING + 2;
const FEED_FORWARD = 32;

/**
 * Writes the model. The encoder's norms give every token a vector of the same length; so that "the" counts less than
 * "lease", a common word has most of its length in the filling, which the last norm multiplies with zero.
 */
export async function makeSentenceModel(file: string, paragraphs: readonly string[]): Promise<void> {
  const sentences = paragraphs.flatMap(sentencesOf);
  const vocabulary = wpmVocabulary(byFrequency(sentences.flat()).slice(0, MOST_WORDS));
  const company = new PairCounts();
  const sentencesWith = new Map<number, number>();
  for (const sentence of sentences) {
    const tokens = [...new Set(sentence)].flatMap((word) =>
      vocabulary.has(SPACE + word) ? [vocabulary.id(SPACE + word)] : [],
    );
    for (const token of tokens) {
      sentencesWith.set(token, (sentencesWith.get(token) ?? 0) + 1);
      for (const other of tokens) company.add(token, other);
    }
  }
  const meanings = distinct(factorize(company.information(vocabulary.size, 2), MEANING).right);

  const random = seededRandom(1);
  const embedding = new Matrix(vocabulary.size, LENGTH);
  vocabulary.tokens.forEach((token, id) => {
    const meaning = Float32Array.from({ length: MEANING }, (_, i) => meanings.get(i, id));
    const occurrences = sentencesWith.get(id) ?? 0;
    // a word that the text does not know, or a letter of one, has a little meaning of its own
    const known = occurrences > 0 && token.length > 2;
    const weight = known ? Math.log((1 + sentences.length) / occurrences) / Math.log(1 + sentences.length) : 0.2;
    embedding.row(id).set(filledUp(known ? meaning : bellShaped(MEANING, random), token.startsWith("[") ? 0 : weight));
  });

  await writeGguf(
    file,
    bertContent({
      name: "model-supervisor demo sentences",
      pooling: "mean",
      embeddingLength: LENGTH,
      heads: 1,
      feedForwardLength: FEED_FORWARD,
      contextLength: 512,
      format: "F32",
      tokenizer: wpmTokenizer(vocabulary),
      embedding: weightsOf(embedding),
      layers: [forgetFilling()],
    }),
  );
}

/**
 * Takes from each direction the mean of all words and, so that the few strongest do not outweigh the rest, the root of its
 * length.
 */
function distinct(meanings: Matrix): Matrix {
  for (let i = 0; i < meanings.rows; i++) {
    const direction = meanings.row(i);
    const mean = direction.reduce((sum, value) => sum + value, 0) / direction.length;
    const length = Math.sqrt(direction.reduce((sum, value) => sum + value ** 2, 0)) || 1;
    direction.forEach((value, token) => (direction[token] = (value - mean) / Math.sqrt(length)));
  }
  return meanings;
}

/** Mean 0 and squared length LENGTH, so that the norms leave the vector as it is; `weight` (0 to 1) of its length is meaning. */
function filledUp(meaning: Float32Array, weight: number): Float32Array {
  const mean = meaning.reduce((sum, value) => sum + value, 0) / meaning.length;
  const centered = meaning.map((value) => value - mean);
  const length = Math.sqrt(centered.reduce((sum, value) => sum + value ** 2, 0)) || 1;
  const scale = (weight * Math.sqrt(LENGTH)) / length;
  const filling = Math.sqrt((LENGTH * (1 - weight ** 2)) / 2);
  return Float32Array.from([...centered.map((value) => value * scale), filling, -filling]);
}

/** A layer that adds nothing and drops the filling. */
function forgetFilling(): BertLayer {
  const nothing = weightsOf(new Matrix(LENGTH, LENGTH));
  return {
    query: nothing,
    key: nothing,
    value: nothing,
    output: nothing,
    up: weightsOf(new Matrix(FEED_FORWARD, LENGTH)),
    down: weightsOf(new Matrix(LENGTH, FEED_FORWARD)),
    scale: new Float32Array(LENGTH).fill(1, 0, MEANING),
  };
}
