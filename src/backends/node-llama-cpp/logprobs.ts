/** How likely the tokens of a text were, for callers that ask. */
import type { SequenceEvaluateMetadataOptions, Token } from "node-llama-cpp";
import type { LikelyToken, TokenLogprob } from "../../inference.js";
import { CONTEXT_TOKENS, type PieceCache } from "./text.js";

/** What the engine says of a token that it has sampled; the probabilities as far as they were asked for, likeliest first. */
export interface SampledToken {
  readonly token: Token;
  readonly confidence?: number;
  readonly probabilities?: ReadonlyMap<Token, number>;
}

/** Those of one text, in order. */
export class Logprobs {
  /** What the engine is to be asked for. */
  readonly metadata: SequenceEvaluateMetadataOptions;
  readonly all: TokenLogprob[] = [];
  readonly #pieces: PieceCache;
  readonly #top: number;
  #last: readonly Token[];
  #taken = 0;

  /** `before`: the tokens that the text continues. */
  constructor(pieces: PieceCache, top: number, before: readonly Token[]) {
    this.metadata = { confidence: true, probabilities: top > 0 };
    this.#pieces = pieces;
    this.#top = top;
    this.#last = before.slice(-CONTEXT_TOKENS);
  }

  add({ token, confidence = Number.NaN, probabilities }: SampledToken): void {
    const chosen = this.#likely(token, confidence);
    this.all.push(probabilities === undefined ? chosen : { ...chosen, top: this.#likeliest(probabilities) });
    this.#last = [...this.#last, token].slice(-CONTEXT_TOKENS);
  }

  /** Those that have been added since the last time. */
  take(): TokenLogprob[] {
    const added = this.all.slice(this.#taken);
    this.#taken = this.all.length;
    return added;
  }

  /** What cannot be is no alternative: a banned token has the probability 0. */
  #likeliest(probabilities: ReadonlyMap<Token, number>): LikelyToken[] {
    const likeliest: LikelyToken[] = [];
    for (const [token, probability] of probabilities) {
      if (likeliest.length === this.#top || !(probability > 0)) break;
      likeliest.push(this.#likely(token, probability));
    }
    return likeliest;
  }

  #likely(token: Token, probability: number): LikelyToken {
    return { token, text: this.#pieces.textOf([token], this.#last, false), logprob: Math.log(probability) };
  }
}
