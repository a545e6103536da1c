/**
 * From tokens to text, a token at a time: never half a character, never a part of a stop sequence, and nothing held
 * back that need not be.
 */
import type { Token } from "node-llama-cpp";

/** The part of the engine's tokenizer that is needed here. */
export interface Detokenizer {
  detokenize(tokens: readonly Token[], specialTokens?: boolean, lastTokens?: readonly Token[]): string;
}

const REPLACEMENT = "\uFFFD";
/** So many tokens the engine looks back on to tell whether a space belongs before the next one. */
export const CONTEXT_TOKENS = 3;
/** Characters around which some tokenizers clean up spaces: pieces with them depend on what stands before. */
const CONTEXT_DEPENDENT = /[?!.,'\uFFFD]/;
/** More tokens than this without a whole character are no text. */
const MAX_HELD_TOKENS = 32;

/** The text of each token id of one model, as it is when a plain piece stands before it. Filled as tokens come. */
export class PieceCache {
  readonly #pieces = new Map<Token, string>();
  readonly #detokenizer: Detokenizer;
  readonly #specialTokens: boolean;

  /** `specialTokens`: they have text too. */
  constructor(detokenizer: Detokenizer, specialTokens = false) {
    this.#detokenizer = detokenizer;
    this.#specialTokens = specialTokens;
  }

  /**
   * The text that these tokens add after `last`. A single token's piece does not depend on `last` once that has text
   * (at the very start a leading space is dropped) and neither of the two has characters that are cleaned up.
   */
  textOf(tokens: readonly Token[], last: readonly Token[], lastIsPlain: boolean): string {
    const [token] = tokens;
    const isCacheable = tokens.length === 1 && lastIsPlain && token !== undefined;
    if (!isCacheable) return this.#detokenizer.detokenize(tokens, this.#specialTokens, last);
    const known = this.#pieces.get(token);
    if (known !== undefined) return known;
    const piece = this.#detokenizer.detokenize(tokens, this.#specialTokens, last);
    if (isPlain(piece)) this.#pieces.set(token, piece);
    return piece;
  }
}

function isPlain(piece: string): boolean {
  return piece !== "" && !CONTEXT_DEPENDENT.test(piece);
}

/** Turns a sequence's tokens into text that only ever grows. */
export class TokenText {
  readonly #cache: PieceCache;
  #last: Token[];
  #lastIsPlain = false;
  /** Tokens whose last character may be incomplete, and how much of their text has been given out. */
  #held: Token[] = [];
  #givenLength = 0;

  /** `before`: the tokens that the text continues. */
  constructor(cache: PieceCache, before: readonly Token[]) {
    this.#cache = cache;
    this.#last = before.slice(-CONTEXT_TOKENS);
  }

  /** The text that is certain now. */
  push(token: Token): string {
    this.#held.push(token);
    const text = this.#cache.textOf(this.#held, this.#last, this.#lastIsPlain);
    // A token without text is held too: at the start of a text it decides about the next one's leading space.
    const isWhole = (text !== "" && !text.endsWith(REPLACEMENT)) || this.#held.length > MAX_HELD_TOKENS;
    const certain = isWhole ? text : text.slice(0, -1);
    // What was held may read otherwise with more bytes, but what was given out was whole characters.
    const added = certain.slice(this.#givenLength);
    if (isWhole) this.#settle(isPlain(text));
    else this.#givenLength = Math.max(this.#givenLength, certain.length);
    return added;
  }

  /** What is left at the end: an incomplete character, as it is. */
  end(): string {
    const rest =
      this.#held.length === 0 ? "" : this.#cache.textOf(this.#held, this.#last, false).slice(this.#givenLength);
    this.#settle(false);
    return rest;
  }

  #settle(isPlainText: boolean): void {
    this.#last = [...this.#last, ...this.#held].slice(-CONTEXT_TOKENS);
    this.#lastIsPlain = isPlainText;
    this.#held = [];
    this.#givenLength = 0;
  }
}

/** Text at which to stop; `byUser` tells the caller's own from what the chat format ends a turn with. */
export interface StopText {
  readonly text: string;
  readonly byUser: boolean;
}

/** Looks for stop sequences across the borders of pieces, and holds back what could be the start of one. */
export class StopScanner {
  readonly #stops: readonly StopText[];
  #pending = "";

  constructor(stops: readonly StopText[]) {
    this.#stops = stops;
  }

  /** The text that is certain not to belong to a stop sequence, and the stop that was found: the one that starts first. */
  push(piece: string): { text: string; stop: StopText | undefined } {
    if (this.#stops.length === 0) return { text: piece, stop: undefined };
    const text = this.#pending + piece;
    let start = Infinity;
    let stop: StopText | undefined;
    for (const candidate of this.#stops) {
      const index = text.indexOf(candidate.text);
      if (index < 0 || index >= start) continue;
      start = index;
      stop = candidate;
    }
    const held = stop === undefined ? this.#heldLength(text) : 0;
    this.#pending = text.slice(text.length - held);
    return { text: text.slice(0, Math.min(start, text.length - held)), stop };
  }

  /** What was held back, when no more text comes. */
  end(): string {
    const rest = this.#pending;
    this.#pending = "";
    return rest;
  }

  /** Length of the longest end of the text that is the start of a stop sequence. */
  #heldLength(text: string): number {
    let longest = 0;
    for (const { text: stop } of this.#stops) {
      for (let length = Math.min(stop.length - 1, text.length); length > longest; length--) {
        if (text.endsWith(stop.slice(0, length))) longest = length;
      }
    }
    return longest;
  }
}
