/**
 * What the engine takes for granted about a file's metadata, and ends the process over if it is not so. Found by flipping
 * bytes of sound files; each check stands for an assertion or an unchecked access in native code. Pure, but it gives way to
 * other work: a vocabulary of 250,000 texts takes some tenths of a second.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { GgufFileInfo } from "node-llama-cpp";

/** Lengths of the arrays in the metadata, by key. */
export type ArrayLengths = ReadonlyMap<string, number>;

/** Tables of the tokenizer that must be as long as the vocabulary. */
const PARALLEL_TABLES = ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"];

/** None, mean, first token, last token, rank. */
const KNOWN_POOLINGS: ReadonlySet<unknown> = new Set([0, 1, 2, 3, 4]);

/** llama.cpp's limit. */
const MAX_LAYERS = 512;

/** Models without attention have other keys in its place. */
const WITHOUT_ATTENTION = /^(rwkv|mamba|arwkv|jamba|falcon-h1|granitehybrid|plamo2|lfm2|nemotron_h|bamba)/;

/** Says what is wrong; `undefined` if the engine may see the file. */
export async function metadataProblem(info: GgufFileInfo, lengths: ArrayLengths): Promise<string | undefined> {
  const architecture = info.metadata.general?.architecture;
  if (architecture === undefined) return "it does not say its architecture (general.architecture)";
  return hyperparameterProblem(info, architecture) ?? (await vocabularyProblem(info, lengths));
}

function hyperparameterProblem(info: GgufFileInfo, architecture: string): string | undefined {
  const facts = info.architectureMetadata;
  const needed: [string, unknown][] = [
    ["block_count", facts.block_count],
    ["context_length", facts.context_length],
    ["embedding_length", facts.embedding_length],
  ];
  if (!WITHOUT_ATTENTION.test(architecture)) needed.push(["attention.head_count", facts.attention?.head_count]);
  const missing = needed.find(([, value]) => !isPositive(value));
  if (missing) return `${architecture}.${missing[0]} is missing or not above 0`;

  if (Number(facts.block_count) > MAX_LAYERS)
    return `${architecture}.block_count is ${facts.block_count}, more layers than the engine knows (${MAX_LAYERS})`;
  const { head_count: heads, head_count_kv: kvHeads } = facts.attention ?? {};
  const optional: [string, unknown][] = [
    ["attention.head_count_kv", kvHeads],
    ["feed_forward_length", facts.feed_forward_length],
  ];
  const wrong = optional.find(([, value]) => value !== undefined && !isPositive(value));
  if (wrong) return `${architecture}.${wrong[0]} is not above 0`;
  const hasDenseLayer =
    info.fullTensorInfo?.some(({ name }) => /^blk\.\d+\.ffn_(up|down)\.weight$/.test(name)) ?? false;
  if (hasDenseLayer && !isPositive(facts.feed_forward_length)) return `${architecture}.feed_forward_length is missing`;
  const pooling = facts.pooling_type;
  if (pooling !== undefined && !KNOWN_POOLINGS.has(pooling))
    return `${architecture}.pooling_type is ${pooling}, which the engine does not know`;
  return (
    epsilonProblem(info, architecture) ??
    headProblem(architecture, facts.embedding_length, heads, kvHeads) ??
    shapeProblem(info, architecture)
  );
}

/** What keeps the norms from dividing by 0 must not be below it, which would be noticed in the middle of a request only. */
function epsilonProblem(
  { architectureMetadata: { attention } }: GgufFileInfo,
  architecture: string,
): string | undefined {
  for (const name of ["layer_norm_epsilon", "layer_norm_rms_epsilon"] as const) {
    const value = attention?.[name];
    if (value !== undefined && !(value >= 0)) return `${architecture}.attention.${name} is ${value}`;
  }
  return undefined;
}

/** The lengths of the heads, against the tensors of the first layer that have them in their shape. */
function shapeProblem(info: GgufFileInfo, architecture: string): string | undefined {
  const { embedding_length: width, attention, rope } = info.architectureMetadata;
  const { head_count: heads, head_count_kv: kvHeads = heads } = attention ?? {};
  if (typeof width !== "number" || typeof heads !== "number" || typeof kvHeads !== "number") return undefined;
  const headLength = Math.floor(width / heads); // as the engine divides
  const keyLength = attention?.key_length ?? headLength;
  const valueLength = attention?.value_length ?? headLength;
  const expected: [string, number][] = [
    ["blk.0.attn_q.weight", heads * keyLength],
    ["blk.0.attn_k.weight", kvHeads * keyLength],
    ["blk.0.attn_v.weight", kvHeads * valueLength],
  ];
  for (const [name, rows] of expected) {
    const dimensions = info.fullTensorInfo?.find((tensor) => tensor.name === name)?.dimensions;
    if (dimensions === undefined || Number(dimensions[1]) === rows) continue;
    return `tensor "${name}" has ${dimensions[1]} rows, the metadata of ${architecture} says ${rows}`;
  }
  const rotated = rope?.dimension_count;
  if (architecture === "llama" && rotated !== undefined && rotated !== keyLength) {
    return `llama.rope.dimension_count is ${rotated}, the heads have ${keyLength}`;
  }
  return undefined;
}

/** Heads share the width of the embedding, unless they have a length of their own; groups of them share keys and values. */
function headProblem(architecture: string, width: unknown, heads: unknown, kvHeads: unknown): string | undefined {
  if (typeof heads !== "number") return undefined;
  if (typeof width === "number" && heads > width) {
    return `${architecture}.attention.head_count is ${heads}, more than the embedding is wide (${width})`;
  }
  if (typeof kvHeads !== "number" || heads % kvHeads === 0) return undefined;
  return `${architecture}.attention.head_count is ${heads}, no multiple of head_count_kv (${kvHeads})`;
}

/** A number above 0; some architectures have one for each layer, of which a few may be 0. */
function isPositive(value: unknown): boolean {
  if (Array.isArray(value)) return value.some(isPositive);
  return typeof value === "number" && Number.isFinite(value) && value > 0;
}

/** Texts of a vocabulary that are looked at in one turn of the event loop: some milliseconds. */
export const TOKENS_PER_TURN = 8192;

async function vocabularyProblem(info: GgufFileInfo, lengths: ArrayLengths): Promise<string | undefined> {
  const { tokenizer } = info.metadata;
  const tokens: readonly string[] | undefined = tokenizer?.ggml?.tokens;
  if (tokens === undefined || tokens.length === 0) return "it has no vocabulary (tokenizer.ggml.tokens)";
  for (const key of PARALLEL_TABLES) {
    const length = lengths.get(key);
    if (length !== undefined && length !== tokens.length) {
      return `${key} has ${length} entries for a vocabulary of ${tokens.length}`;
    }
  }
  const known = new Set<string>();
  for (const [index, token] of tokens.entries()) {
    // native strings end at a NUL, so that two of them may become one
    if (token.includes("\0")) return "its vocabulary has a text with a NUL character";
    known.add(token);
    if (index % TOKENS_PER_TURN === TOKENS_PER_TURN - 1) await nextTurn();
  }
  if (known.size !== tokens.length) return "its vocabulary has the same text more than once";
  return tokenizer?.ggml?.model === "llama" ? byteProblem(known) : undefined;
}

/** A sentencepiece vocabulary spells what it has no piece for in bytes; the engine looks each of them up. */
function byteProblem(known: ReadonlySet<string>): string | undefined {
  for (let byte = 0; byte < 256; byte++) {
    const name = `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
    if (!known.has(name) && !known.has(String.fromCharCode(byte)))
      return `its vocabulary has no token for the byte ${name}`;
  }
  return undefined;
}
