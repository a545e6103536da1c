/** The two attention heads of the word model: one fetches the previous token, the other what the text is about. */
import type { HandSetAttention } from "../../src/testing/gguf/llama-layout.js";
import { Matrix } from "../../src/testing/gguf/matrix.js";

/** Numbers of a code, which tells a token where there is no room for a number of its own; also the length of a head. */
export const CODE_LENGTH = 128;

/**
 * The fastest pairs of a head turn by up to one radian per token and can tell neighbours apart; the slowest turns so
 * little that for it all distances are alike.
 */
export const ROPE_BASE = 1e6;

export interface WordAttention {
  /** Length of a state, where token `t` is the number at `t`. */
  readonly stateLength: number;
  /** The size of that number behind the norm. */
  readonly tokenValue: number;
  /** One column per token. */
  readonly previousCodes: Matrix;
  readonly topicCodes: Matrix;
  /** By token, 0 to 1. */
  readonly importance: readonly number[];
  /** Where in the state the code of the previous token is written; that of the topic follows. */
  readonly codesAt: number;
}

export function wordAttention(options: WordAttention): HandSetAttention {
  const { stateLength, tokenValue, previousCodes, topicCodes, importance, codesAt } = options;
  const width = 2 * CODE_LENGTH;
  const key = new Matrix(width, stateLength);
  const value = new Matrix(width, stateLength);
  const output = new Matrix(stateLength, width);
  [previousCodes, topicCodes].forEach((codes, head) => {
    for (let i = 0; i < CODE_LENGTH; i++) {
      const at = head * CODE_LENGTH + i;
      for (let token = 0; token < codes.columns; token++) value.set(at, token, codes.get(i, token) / tokenValue);
      output.set(codesAt + at, at, 1);
    }
  });

  const { queryBias, keyBias } = previousTokenBiases(width);
  // Topic: attention in proportion to the fourth power of importance. Its logarithm is the key, in the slowest pair.
  const slowest = width - 2;
  queryBias[slowest] = 4 * Math.sqrt(CODE_LENGTH); // attention divides by the root
  importance.forEach((value, token) => key.set(slowest, token, Math.log(Math.max(value, 0.01)) / tokenValue));

  const query = new Matrix(width, stateLength);
  return { heads: 2, headLength: CODE_LENGTH, query, key, value, output, queryBias, keyBias };
}

/** Constant queries and keys, which the rotary encoding turns by their positions so that they agree best at a distance of one. */
function previousTokenBiases(width: number): { queryBias: Float32Array; keyBias: Float32Array } {
  const queryBias = new Float32Array(width);
  const keyBias = new Float32Array(width);
  const sharpness = 150;
  for (let i = 0; i < CODE_LENGTH; i += 2) {
    const turn = ROPE_BASE ** (-i / CODE_LENGTH);
    if (turn < 0.01) break; // too slow to tell one from two
    queryBias.set([sharpness * Math.cos(turn), -sharpness * Math.sin(turn)], i);
    keyBias.set([1, 0], i);
  }
  return { queryBias, keyBias };
}
