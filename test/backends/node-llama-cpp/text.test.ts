import type { Token } from "node-llama-cpp";
import { describe, expect, it } from "vitest";
import { PieceCache, StopScanner, TokenText, type Detokenizer } from "../../../src/backends/node-llama-cpp/text.js";

const isToken = (id: number): id is Token => Number.isInteger(id);
const token = (id: number): Token => {
  if (!isToken(id)) throw new TypeError("not a token");
  return id;
};

/** A vocabulary of byte strings that drops one leading space at the start of a text, as SentencePiece tokenizers do. */
class Vocabulary implements Detokenizer {
  readonly ids = new Map<string, Token>();
  readonly #bytes: Buffer[] = [];
  calls = 0;

  add(name: string, bytes: Buffer | string = name): Token {
    const id = token(this.#bytes.length);
    this.#bytes.push(Buffer.from(bytes));
    this.ids.set(name, id);
    return id;
  }

  detokenize(tokens: readonly Token[], _special?: boolean, last: readonly Token[] = []): string {
    this.calls++;
    const before = this.#plain(last);
    const text = this.#plain([...last, ...tokens]);
    return before !== "" && text.startsWith(before) ? text.slice(before.length) : this.#plain(tokens);
  }

  #plain(tokens: readonly Token[]): string {
    return Buffer.concat(tokens.map((id) => this.#bytes[id] ?? Buffer.alloc(0)))
      .toString("utf8")
      .replace(/^ /, "");
  }
}

function textOf(bytes: (string | number[])[], before: (string | number[])[] = []) {
  const vocabulary = new Vocabulary();
  const ids = (list: (string | number[])[]) =>
    list.map((piece) => vocabulary.add(JSON.stringify(piece), typeof piece === "string" ? piece : Buffer.from(piece)));
  const text = new TokenText(new PieceCache(vocabulary), ids(before));
  return [...ids(bytes).map((id) => text.push(id)), text.end()];
}

const EURO = [0xe2, 0x82, 0xac];
const GRIN = [0xf0, 0x9f, 0x98, 0x80];

describe("TokenText", () => {
  it.each<{ name: string; tokens: (string | number[])[]; before?: (string | number[])[]; pieces: string[] }>([
    { name: "whole words come at once", tokens: ["Hello", " world", "."], pieces: ["Hello", " world", ".", ""] },
    { name: "the first space of a new text is dropped", tokens: [" Hello", " world"], pieces: ["Hello", " world", ""] },
    {
      name: "the first space of a continued text is kept",
      before: ["Once"],
      tokens: [" upon", " a"],
      pieces: [" upon", " a", ""],
    },
    { name: "only one leading space is dropped", tokens: [" ", " Hello"], pieces: ["", " Hello", ""] },
    {
      name: "a character comes when its last byte does",
      tokens: EURO.map((byte) => [byte]),
      pieces: ["", "", "€", ""],
    },
    { name: "of four bytes too", tokens: [...GRIN.map((byte) => [byte]), "!"], pieces: ["", "", "", "😀", "!", ""] },
    {
      name: "what stands before half a character comes at once",
      tokens: [
        [0x61, 0xe2],
        [0x82, 0xac, 0x62],
      ],
      pieces: ["a", "€b", ""],
    },
    { name: "two halves in one token", tokens: [[0xe2], [0x82, 0xac, 0xe2, 0x82], [0xac]], pieces: ["", "€", "€", ""] },
    {
      name: "an incomplete character at the end comes as it is",
      tokens: ["a", [0xe2], [0x82]],
      pieces: ["a", "", "", "\uFFFD"],
    },
    {
      name: "a byte that can begin no character is not held for ever",
      tokens: [[0xff], "ok"],
      pieces: ["", "\uFFFDok", ""],
    },
    {
      name: "the space after a character of bytes is kept",
      tokens: [...EURO.map((byte) => [byte]), " each"],
      pieces: ["", "", "€", " each", ""],
    },
    {
      name: "a replacement character that the model means comes through",
      tokens: ["\uFFFD", " x"],
      pieces: ["", "\uFFFD x", ""],
    },
  ])("$name", ({ tokens, before, pieces }) => {
    expect(textOf(tokens, before)).toEqual(pieces);
  });

  it("does not hold back endless garbage", () => {
    const pieces = textOf(Array.from({ length: 200 }, () => [0xff]));

    expect(pieces.slice(0, -1).join("").length).toBeGreaterThan(150);
    expect(pieces.join("")).toBe("\uFFFD".repeat(200));
  });

  it("asks the engine once for each plain piece", () => {
    const vocabulary = new Vocabulary();
    const start = vocabulary.add("start");
    const word = vocabulary.add(" word");
    const text = new TokenText(new PieceCache(vocabulary), []);
    text.push(start);
    text.push(word);
    const calls = vocabulary.calls;

    expect(Array.from({ length: 100 }, () => text.push(word)).join("")).toBe(" word".repeat(100));
    expect(vocabulary.calls).toBe(calls);
  });

  it("asks the engine again where punctuation makes a piece depend on what stands before", () => {
    const vocabulary = new Vocabulary();
    const word = vocabulary.add("word");
    const comma = vocabulary.add(" ,");
    const text = new TokenText(new PieceCache(vocabulary), []);
    for (const id of [word, comma, word]) text.push(id);
    const calls = vocabulary.calls;

    text.push(comma);
    text.push(word);

    expect(vocabulary.calls).toBe(calls + 2);
  });
});

describe("StopScanner", () => {
  const scan = (pieces: string[], stops: string[]) => {
    const scanner = new StopScanner(stops.map((text) => ({ text, byUser: true })));
    const given: string[] = [];
    for (const piece of pieces) {
      const { text, stop } = scanner.push(piece);
      given.push(text);
      if (stop !== undefined) return { given, stop: stop.text };
    }
    return { given: [...given, scanner.end()], stop: undefined };
  };

  it.each([
    { name: "no stops: all passes", pieces: ["a", "b"], stops: [], given: ["a", "b", ""], stop: undefined },
    { name: "within one piece", pieces: ["one END two"], stops: ["END"], given: ["one "], stop: "END" },
    { name: "across pieces", pieces: ["one E", "N", "D two"], stops: ["END"], given: ["one ", "", ""], stop: "END" },
    {
      name: "a start that is none is given back",
      pieces: ["one E", "N", "T"],
      stops: ["END"],
      given: ["one ", "", "ENT", ""],
      stop: undefined,
    },
    {
      name: "a start at the end is given back",
      pieces: ["one EN"],
      stops: ["END"],
      given: ["one ", "EN"],
      stop: undefined,
    },
    { name: "an overlapping start", pieces: ["aa", "ab"], stops: ["aab"], given: ["", "a"], stop: "aab" },
    { name: "the one that starts first wins", pieces: ["x ab"], stops: ["b", "ab"], given: ["x "], stop: "ab" },
    {
      name: "a long stop does not hide a short one in it",
      pieces: ["a", "b"],
      stops: ["abc", "b"],
      given: ["", "a"],
      stop: "b",
    },
    { name: "a whole text of stop", pieces: ["END"], stops: ["END"], given: [""], stop: "END" },
    {
      name: "only what could be a start is held",
      pieces: ["xa", "xb"],
      stops: ["ab"],
      given: ["x", "axb", ""],
      stop: undefined,
    },
  ])("$name", ({ pieces, stops, given, stop }) => {
    expect(scan(pieces, stops)).toEqual({ given, stop });
  });
});
