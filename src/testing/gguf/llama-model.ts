/** Random-weight generative models of any size. */
import { constantTensor, writeGguf, type FileOptions, type Tensor, type WrittenFiles } from "./gguf-writer.js";
import { llamaMetadata } from "./llama-layout.js";
import { formats, type NumberFormat } from "./number-formats.js";
import { refuseUnknownOptions, requireChoice, requireInteger } from "./options.js";
import { randomTensors, withZeroRows } from "./random-tensors.js";
import { spmTokenizer, spmVocabulary, type Vocabulary } from "./vocabulary.js";

/** Sizes of a random model. */
export interface RandomModelShape {
  readonly layers: number;
  readonly embeddingLength: number;
  readonly heads: number;
  /** Heads of keys and values; divides `heads`. */
  readonly kvHeads: number;
  readonly feedForwardLength: number;
  /** Tokens at least; the vocabulary itself has some 900. */
  readonly vocabularySize: number;
  /** Tokens that the model claims to be trained for. */
  readonly contextLength: number;
  readonly format: NumberFormat;
}

/** Ready-made shapes: about 1 MB, 54 MB and 500 MB. */
export const randomModelPresets = {
  tiny: {
    layers: 4,
    embeddingLength: 64,
    heads: 4,
    kvHeads: 2,
    feedForwardLength: 192,
    vocabularySize: 0,
    contextLength: 2048,
    format: "F32",
  },
  small: {
    layers: 8,
    embeddingLength: 512,
    heads: 8,
    kvHeads: 2,
    feedForwardLength: 1408,
    vocabularySize: 4096,
    contextLength: 4096,
    format: "F16",
  },
  large: {
    layers: 16,
    embeddingLength: 1024,
    heads: 16,
    kvHeads: 4,
    feedForwardLength: 4096,
    vocabularySize: 4096,
    contextLength: 4096,
    format: "F16",
  },
} as const satisfies Record<string, RandomModelShape>;

/** Options of {@link makeRandomModel}. */
export interface RandomModelOptions extends Partial<RandomModelShape>, FileOptions {
  /** Shape to start from; single sizes can be overridden. @defaultValue "tiny" */
  readonly preset?: keyof typeof randomModelPresets;
  /** The same seed and shape give the same bytes. @defaultValue 1 */
  readonly seed?: number;
}

const SIZES = ["layers", "embeddingLength", "heads", "kvHeads", "feedForwardLength", "contextLength"] as const;

/**
 * Writes a generative model with seeded random weights. Its text is nonsense, but depends on all of the context, as a
 * real model's does. Greedy decoding never ends by itself and is valid UTF-8. It chats in ChatML.
 *
 * The greedy text of random weights may change with the composition of a batch: where a test wants exact text, take
 * `makeRecitingModel` or `makeRecallModel`.
 *
 * @throws TypeError naming the option that is wrong.
 */
export async function makeRandomModel(file: string, options: RandomModelOptions = {}): Promise<WrittenFiles> {
  refuseUnknownOptions(options, ["preset", "seed", "format", "vocabularySize", ...SIZES]);
  const { preset = "tiny", seed = 1 } = options;
  requireChoice("preset", preset, randomModelPresets);
  requireInteger("seed", seed, 0);
  const shape: RandomModelShape = { ...randomModelPresets[preset], ...options };
  requireShape(shape);

  const { layers, embeddingLength, heads, kvHeads, feedForwardLength, contextLength, format } = shape;
  const headLength = embeddingLength / heads;
  const kvLength = kvHeads * headLength;
  const vocabulary = spmVocabulary([], shape.vocabularySize);
  const vocabularySize = vocabulary.size;
  const make = randomTensors(seed);
  // 1 / sqrt(inputs) keeps the size of the numbers the same from layer to layer
  const weights = (name: string, inputs: number, outputs: number): Tensor =>
    make(name, [inputs, outputs], format, 1 / Math.sqrt(inputs));

  const layerTensors = (layer: number): Tensor[] => [
    constantTensor(`blk.${layer}.attn_norm.weight`, embeddingLength, 1),
    weights(`blk.${layer}.attn_q.weight`, embeddingLength, embeddingLength),
    weights(`blk.${layer}.attn_k.weight`, embeddingLength, kvLength),
    weights(`blk.${layer}.attn_v.weight`, embeddingLength, kvLength),
    weights(`blk.${layer}.attn_output.weight`, embeddingLength, embeddingLength),
    constantTensor(`blk.${layer}.ffn_norm.weight`, embeddingLength, 1),
    weights(`blk.${layer}.ffn_gate.weight`, embeddingLength, feedForwardLength),
    weights(`blk.${layer}.ffn_up.weight`, embeddingLength, feedForwardLength),
    weights(`blk.${layer}.ffn_down.weight`, feedForwardLength, embeddingLength),
  ];
  const name = `random-${layers}x${embeddingLength}`;
  const sizes = {
    layers,
    embeddingLength,
    heads,
    kvHeads,
    headLength,
    feedForwardLength,
    contextLength,
    vocabularySize,
  };
  return writeGguf(
    file,
    {
      metadata: {
        ...llamaMetadata({ ...sizes, name, format, ropeBase: 10_000 }),
        ...spmTokenizer(vocabulary),
      },
      tensors: [
        make("token_embd.weight", [embeddingLength, vocabularySize], format, 1),
        withZeroRows(weights("output.weight", embeddingLength, vocabularySize), silentTokens(vocabulary)),
        ...Array.from({ length: layers }, (_, layer) => layerTensors(layer)).flat(),
        constantTensor("output_norm.weight", embeddingLength, 1),
      ],
    },
    options,
  );
}

/** Tokens that greedy decoding must never choose: they would end the text, or leave half a UTF-8 character in it. */
function silentTokens({ types, tokens }: Vocabulary): number[] {
  const firstByte = types.indexOf("byte");
  const printable = (id: number): boolean => id - firstByte >= 32 && id - firstByte < 127;
  return tokens.flatMap((_, id) => (types[id] === "normal" || (types[id] === "byte" && printable(id)) ? [] : [id]));
}

function requireShape(shape: RandomModelShape): void {
  requireChoice("format", shape.format, formats);
  const { blockLength } = formats[shape.format];
  for (const size of SIZES) requireInteger(size, shape[size]);
  requireInteger("vocabularySize", shape.vocabularySize, 0);
  requireInteger("feedForwardLength", shape.feedForwardLength, 1, blockLength);
  requireInteger("heads", shape.heads, 1, shape.kvHeads);
  // a head is rotated in pairs, hence twice the heads
  requireInteger("embeddingLength", shape.embeddingLength, 1, 2 * shape.heads);
  requireInteger("embeddingLength", shape.embeddingLength, 1, blockLength);
}
