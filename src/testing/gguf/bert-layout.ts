/** The bert architecture as llama.cpp reads it: metadata keys and tensor names. */
import {
  bool,
  constantTensor,
  f32,
  tensorOf,
  text,
  u32,
  type GgufContent,
  type Metadata,
  type Tensor,
} from "./gguf-writer.js";
import type { Matrix } from "./matrix.js";
import { formats, type NumberFormat } from "./number-formats.js";

/** llama.cpp's numbers for how the states of the tokens become one vector. */
const poolings = { mean: 1, cls: 2, rank: 4 };
type Pooling = keyof typeof poolings;

/** Weights that are still to be named. */
export type Weights = (name: string) => Tensor;

export const weightsOf =
  (matrix: Matrix): Weights =>
  (name) =>
    matrix.toTensor(name);

/** One encoder layer. After attention and after the feed-forward part the state is normalized. */
export interface BertLayer {
  readonly query: Weights;
  readonly key: Weights;
  readonly value: Weights;
  readonly output: Weights;
  readonly up: Weights;
  readonly down: Weights;
  /** Added to every query. */
  readonly queryBias?: Float32Array;
  /** What each number of the state is multiplied with at the end of the layer. */
  readonly scale?: Float32Array;
}

export interface BertModel {
  readonly name: string;
  readonly pooling: Pooling;
  readonly embeddingLength: number;
  readonly heads: number;
  readonly feedForwardLength: number;
  readonly contextLength: number;
  readonly format: NumberFormat;
  readonly tokenizer: Metadata;
  readonly embedding: Weights;
  readonly layers: readonly BertLayer[];
  /** Tensors of the ranking head. */
  readonly head?: readonly Tensor[];
}

/** Positions and token types add nothing to a token's vector: these models see a text as a bag of words. */
export function bertContent(model: BertModel): GgufContent {
  const { embeddingLength, contextLength } = model;
  const norm = (name: string, scale?: Float32Array): Tensor[] => [
    scale === undefined
      ? constantTensor(`${name}.weight`, embeddingLength, 1)
      : tensorOf(`${name}.weight`, [embeddingLength], scale),
    constantTensor(`${name}.bias`, embeddingLength, 0),
  ];
  const layerTensors = (layer: BertLayer, index: number): Tensor[] => {
    const at = (name: string): string => `blk.${index}.${name}`;
    return [
      layer.query(at("attn_q.weight")),
      tensorOf(at("attn_q.bias"), [embeddingLength], layer.queryBias ?? new Float32Array(embeddingLength)),
      layer.key(at("attn_k.weight")),
      layer.value(at("attn_v.weight")),
      layer.output(at("attn_output.weight")),
      ...norm(at("attn_output_norm")),
      layer.up(at("ffn_up.weight")),
      layer.down(at("ffn_down.weight")),
      ...norm(at("layer_output_norm"), layer.scale),
    ];
  };
  return {
    metadata: {
      "general.architecture": text("bert"),
      "general.name": text(model.name),
      "general.file_type": u32(formats[model.format].fileType),
      "general.quantization_version": u32(2),
      "bert.context_length": u32(contextLength),
      "bert.embedding_length": u32(embeddingLength),
      "bert.block_count": u32(model.layers.length),
      "bert.feed_forward_length": u32(model.feedForwardLength),
      "bert.attention.head_count": u32(model.heads),
      "bert.attention.layer_norm_epsilon": f32(1e-12),
      "bert.attention.causal": bool(false),
      "bert.pooling_type": u32(poolings[model.pooling]),
      ...model.tokenizer,
    },
    tensors: [
      model.embedding("token_embd.weight"),
      tensorOf("token_types.weight", [embeddingLength, 2], new Float32Array(2 * embeddingLength)),
      tensorOf(
        "position_embd.weight",
        [embeddingLength, contextLength],
        new Float32Array(embeddingLength * contextLength),
      ),
      ...norm("token_embd_norm"),
      ...model.layers.flatMap(layerTensors),
      ...(model.head ?? []),
    ],
  };
}
