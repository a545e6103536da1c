/** A reranker set by hand: the more of their words query and document share, the higher the score. */
import { bertContent, weightsOf, type BertLayer } from "./bert-layout.js";
import { constantTensor, tensorOf, writeGguf, type FileOptions, type WrittenFiles } from "./gguf-writer.js";
import { Matrix } from "./matrix.js";
import { refuseUnknownOptions } from "./options.js";
import { bellShaped, seededRandom } from "./random.js";
import { SPACE, wpmTokenizer, wpmVocabulary, type Vocabulary } from "./vocabulary.js";

/** Options of {@link makeRankingModel}. */
export interface RankingModelOptions extends FileOptions {
  /** Lower-case words to know beside the everyday ones; others do not count. @defaultValue [] */
  readonly words?: readonly string[];
}

// The numbers of a state: who a word is, then pairs (x, -x), which leave the mean of the state at zero.
const IDENTITY = 184;
const WORD = IDENTITY;
const FIRST = WORD + 2;
const OTHER = FIRST + 2;
const ALONE = OTHER + 2;
const LENGTH = ALONE + 2;
const FEED_FORWARD = 32;

/**
 * Writes a cross-encoder that ranks: its score (0 to 1) grows with the share of words that query and document have in
 * common. Words of up to three letters do not count.
 *
 * @throws TypeError naming the option that is wrong.
 */
export async function makeRankingModel(file: string, options: RankingModelOptions = {}): Promise<WrittenFiles> {
  refuseUnknownOptions(options, ["words"]);
  const vocabulary = wpmVocabulary(options.words ?? []);
  return writeGguf(
    file,
    bertContent({
      name: "ranking",
      pooling: "rank",
      embeddingLength: LENGTH,
      heads: 1,
      feedForwardLength: FEED_FORWARD,
      contextLength: 512,
      format: "F32",
      tokenizer: wpmTokenizer(vocabulary),
      embedding: weightsOf(tokenVectors(vocabulary)),
      layers: [lookForTwins(), gather()],
      head: scoringHead(),
    }),
    options,
  );
}

/** Mean 0 and squared length LENGTH, so that the layer norm leaves a vector as it is. */
function tokenVectors(vocabulary: Vocabulary): Matrix {
  const random = seededRandom(1);
  const vectors = new Matrix(vocabulary.size, LENGTH);
  vocabulary.tokens.forEach((token, id) => {
    const row = vectors.row(id);
    const counts = token.startsWith(SPACE) && token.length > 4;
    if (counts) row.set(identity(bellShaped(IDENTITY, random)));
    const kind = counts ? WORD : token === "[CLS]" ? FIRST : OTHER;
    row.set(pair(counts ? 1 : Math.sqrt(LENGTH / 2)), kind);
  });
  return vectors;
}

/** What is left of the squared length beside the WORD pair. */
const IDENTITY_SQUARED = LENGTH - 2;

function identity(raw: Float32Array): Float32Array {
  const mean = raw.reduce((sum, value) => sum + value, 0) / raw.length;
  const centered = raw.map((value) => value - mean);
  const scale = Math.sqrt(IDENTITY_SQUARED / centered.reduce((sum, value) => sum + value * value, 0));
  return centered.map((value) => value * scale);
}

const pair = (value: number): [number, number] => [value, -value];

/**
 * A word attends to itself, to its twins and, by a constant in its query, just as much to the first token. So the first
 * token's share is 1/2 for a word without a twin, 1/3 with one: that is written down as ALONE.
 */
function lookForTwins(): BertLayer {
  const same = 25 * Math.sqrt(LENGTH); // attention divides by the root; e^25 drowns unlike words
  const query = new Matrix(LENGTH, LENGTH);
  const key = new Matrix(LENGTH, LENGTH);
  for (let i = 0; i < IDENTITY; i++) {
    query.set(i, i, same / IDENTITY_SQUARED);
    key.set(i, i, 1);
  }
  const first = Math.sqrt(LENGTH / 2);
  key.set(FIRST, FIRST, 1);
  const queryBias = new Float32Array(LENGTH);
  queryBias[FIRST] = same / first;
  const value = new Matrix(LENGTH, LENGTH).set(0, FIRST, 1 / first);
  const output = new Matrix(LENGTH, LENGTH).set(ALONE, 0, 1).set(ALONE + 1, 0, -1);
  return { ...layerOf(query, key, value, output), queryBias };
}

/** The first token takes the mean of all words' ALONE, in the place of its own kind, which it no longer needs. */
function gather(): BertLayer {
  const query = new Matrix(LENGTH, LENGTH).set(0, FIRST, 5 * Math.sqrt(LENGTH));
  const key = new Matrix(LENGTH, LENGTH).set(0, WORD, 1);
  const value = new Matrix(LENGTH, LENGTH).set(0, ALONE, 1);
  const output = new Matrix(LENGTH, LENGTH).set(OTHER, 0, 1).set(OTHER + 1, 0, -1);
  return layerOf(query, key, value, output);
}

/** ALONE is 0.5 on average when nothing is shared and 1/3 when all is: spread over the whole of 0 to 1. */
function scoringHead(): ReturnType<typeof tensorOf>[] {
  const slope = 12;
  return [
    new Matrix(LENGTH, LENGTH).set(0, OTHER, -slope).toTensor("cls.weight"),
    tensorOf("cls.bias", [LENGTH], new Float32Array(LENGTH).fill(slope * 0.42, 0, 1)),
    new Matrix(1, LENGTH).set(0, 0, 5).toTensor("cls.output.weight"),
    constantTensor("cls.output.bias", 1, 0),
  ];
}

function layerOf(query: Matrix, key: Matrix, value: Matrix, output: Matrix): BertLayer {
  return {
    query: weightsOf(query),
    key: weightsOf(key),
    value: weightsOf(value),
    output: weightsOf(output),
    up: weightsOf(new Matrix(FEED_FORWARD, LENGTH)),
    down: weightsOf(new Matrix(LENGTH, FEED_FORWARD)),
  };
}
