/** Random-weight embedding models. */
import { bertContent, type BertLayer, type Weights } from "./bert-layout.js";
import { writeGguf, type FileOptions, type WrittenFiles } from "./gguf-writer.js";
import type { NumberFormat } from "./number-formats.js";
import { refuseUnknownOptions, requireChoice, requireInteger } from "./options.js";
import { randomTensors, withZeroRows } from "./random-tensors.js";
import { wpmTokenizer, wpmVocabulary } from "./vocabulary.js";

interface EmbeddingModelShape {
  readonly layers: number;
  readonly embeddingLength: number;
  readonly heads: number;
  readonly feedForwardLength: number;
  readonly vocabularySize: number;
  readonly contextLength: number;
  readonly format: NumberFormat;
}

/** Ready-made shapes: about 0.6 MB (64 numbers per vector) and 28 MB (384). */
export const embeddingModelPresets = {
  tiny: {
    layers: 2,
    embeddingLength: 64,
    heads: 4,
    feedForwardLength: 128,
    vocabularySize: 0,
    contextLength: 512,
    format: "F32",
  },
  small: {
    layers: 6,
    embeddingLength: 384,
    heads: 12,
    feedForwardLength: 1536,
    vocabularySize: 8192,
    contextLength: 512,
    format: "F16",
  },
} as const satisfies Record<string, EmbeddingModelShape>;

/** Options of {@link makeEmbeddingModel}. */
export interface EmbeddingModelOptions extends FileOptions {
  /** @defaultValue "tiny" */
  readonly preset?: keyof typeof embeddingModelPresets;
  /** How the vector of a text comes about: mean of its tokens, or the state of the first one. @defaultValue "mean" */
  readonly pooling?: "mean" | "cls";
  /** Lower-case words to know beside the everyday ones; any other word is read letter by letter. @defaultValue [] */
  readonly words?: readonly string[];
  /** The same options give the same bytes. @defaultValue 1 */
  readonly seed?: number;
}

/**
 * Writes an encoder that embeds: texts that share words are closer than texts that do not, in any order of the words.
 * The vectors are not normalized.
 *
 * @throws TypeError naming the option that is wrong.
 */
export async function makeEmbeddingModel(file: string, options: EmbeddingModelOptions = {}): Promise<WrittenFiles> {
  refuseUnknownOptions(options, ["preset", "pooling", "words", "seed"]);
  const { preset = "tiny", pooling = "mean", words = [], seed = 1 } = options;
  requireChoice("preset", preset, embeddingModelPresets);
  requireChoice("pooling", pooling, { mean: 1, cls: 2 });
  requireInteger("seed", seed, 0);

  const shape = embeddingModelPresets[preset];
  const { layers, embeddingLength, heads, feedForwardLength, vocabularySize, contextLength, format } = shape;
  const vocabulary = wpmVocabulary(words, vocabularySize);
  const make = randomTensors(seed);
  // With little added by the layers a vector stays close to the sum of its words.
  const weights =
    (inputs: number, outputs: number, gain = 1): Weights =>
    (name) =>
      make(name, [inputs, outputs], format, gain / Math.sqrt(inputs));
  const layer = (): BertLayer => ({
    query: weights(embeddingLength, embeddingLength),
    key: weights(embeddingLength, embeddingLength),
    value: weights(embeddingLength, embeddingLength),
    output: weights(embeddingLength, embeddingLength, 0.1),
    up: weights(embeddingLength, feedForwardLength),
    down: weights(feedForwardLength, embeddingLength, 0.1),
  });
  return writeGguf(
    file,
    bertContent({
      name: `random-bert-${layers}x${embeddingLength}`,
      pooling,
      embeddingLength,
      heads,
      feedForwardLength,
      contextLength,
      format,
      tokenizer: wpmTokenizer(vocabulary),
      // The first token brings nothing of its own: with "cls" its state is what attention found in the text.
      embedding: (name) =>
        withZeroRows(make(name, [embeddingLength, vocabulary.size], format, 1), [vocabulary.id("[CLS]")]),
      layers: Array.from({ length: layers }, layer),
    }),
    options,
  );
}
