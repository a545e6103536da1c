/** The llama architecture as llama.cpp reads it: metadata keys, tensor names, and one-layer models set by hand. */
import { constantTensor, f32, text, u32, type GgufContent, type Metadata, type Tensor } from "./gguf-writer.js";
import { Matrix } from "./matrix.js";
import { formats, type NumberFormat } from "./number-formats.js";

/** Sizes of a llama model. */
export interface LlamaShape {
  readonly name: string;
  readonly layers: number;
  readonly embeddingLength: number;
  readonly heads: number;
  readonly kvHeads: number;
  /** Values per head. */
  readonly headLength: number;
  readonly feedForwardLength: number;
  readonly contextLength: number;
  readonly vocabularySize: number;
  readonly format: NumberFormat;
  /** Base of the rotary position encoding: the slowest pair of a head turns by about 1 / base per token. */
  readonly ropeBase: number;
}

export function llamaMetadata(shape: LlamaShape): Metadata {
  return {
    "general.architecture": text("llama"),
    "general.name": text(shape.name),
    "general.file_type": u32(formats[shape.format].fileType),
    "general.quantization_version": u32(2),
    "llama.context_length": u32(shape.contextLength),
    "llama.embedding_length": u32(shape.embeddingLength),
    "llama.block_count": u32(shape.layers),
    "llama.feed_forward_length": u32(shape.feedForwardLength),
    "llama.attention.head_count": u32(shape.heads),
    "llama.attention.head_count_kv": u32(shape.kvHeads),
    "llama.attention.key_length": u32(shape.headLength),
    "llama.attention.value_length": u32(shape.headLength),
    "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
    "llama.rope.dimension_count": u32(shape.headLength),
    "llama.rope.freq_base": f32(shape.ropeBase),
    "llama.vocab_size": u32(shape.vocabularySize),
  };
}

/** The attention of a {@link handSetLlama}: weights, and constant vectors added to queries and keys. */
export interface HandSetAttention {
  readonly heads: number;
  readonly headLength: number;
  readonly query: Matrix;
  readonly key: Matrix;
  readonly value: Matrix;
  readonly output: Matrix;
  readonly queryBias?: Float32Array;
  readonly keyBias?: Float32Array;
}

/** A model whose every weight is set by hand. */
export interface HandSetLlama {
  readonly name: string;
  readonly contextLength: number;
  readonly tokenizer: Metadata;
  /** One row per token. */
  readonly embedding: Matrix;
  /** One row per token: its dot product with the last state is the token's logit. */
  readonly output: Matrix;
  readonly attention?: HandSetAttention;
  readonly ropeBase?: number;
  readonly format?: NumberFormat;
}

/** One layer, with a feed-forward part that adds nothing, and no attention unless it is given. */
export function handSetLlama(model: HandSetLlama): GgufContent {
  const embeddingLength = model.embedding.columns;
  const format = model.format ?? "F32";
  const attention = model.attention ?? noAttention(embeddingLength);
  const feedForwardLength = 32;
  const norm = (name: string): Tensor => constantTensor(name, embeddingLength, 1);
  const bias = (name: string, values?: Float32Array): Tensor[] =>
    values === undefined
      ? []
      : [{ ...new Matrix(1, values.length, values).toTensor(name), dimensions: [values.length] }];
  const shape: LlamaShape = {
    name: model.name,
    layers: 1,
    embeddingLength,
    heads: attention.heads,
    kvHeads: attention.heads,
    headLength: attention.headLength,
    feedForwardLength,
    contextLength: model.contextLength,
    vocabularySize: model.embedding.rows,
    format,
    ropeBase: model.ropeBase ?? 10_000,
  };
  return {
    metadata: { ...llamaMetadata(shape), ...model.tokenizer },
    tensors: [
      model.embedding.toTensor("token_embd.weight", format),
      model.output.toTensor("output.weight", format),
      norm("output_norm.weight"),
      norm("blk.0.attn_norm.weight"),
      attention.query.toTensor("blk.0.attn_q.weight", format),
      ...bias("blk.0.attn_q.bias", attention.queryBias),
      attention.key.toTensor("blk.0.attn_k.weight", format),
      ...bias("blk.0.attn_k.bias", attention.keyBias),
      attention.value.toTensor("blk.0.attn_v.weight", format),
      attention.output.toTensor("blk.0.attn_output.weight", format),
      norm("blk.0.ffn_norm.weight"),
      new Matrix(feedForwardLength, embeddingLength).toTensor("blk.0.ffn_gate.weight", format),
      new Matrix(feedForwardLength, embeddingLength).toTensor("blk.0.ffn_up.weight", format),
      new Matrix(embeddingLength, feedForwardLength).toTensor("blk.0.ffn_down.weight", format),
    ],
  };
}

function noAttention(embeddingLength: number): HandSetAttention {
  const headLength = 32;
  const inward = new Matrix(headLength, embeddingLength);
  return {
    heads: 1,
    headLength,
    query: inward,
    key: inward,
    value: inward,
    output: new Matrix(embeddingLength, headLength),
  };
}
