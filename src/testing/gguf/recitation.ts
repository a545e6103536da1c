/**
 * Tokens for a text that a model is to recite, each of them its own even where the text repeats itself, and none of them
 * ever made from a prompt: so the last token tells the model how far it is.
 *
 * A vocabulary must not hold a text twice, yet tokens of different text may render alike. A word is written with a plain
 * space, where the tokenizer looks for {@link SPACE} only, or is three characters or longer, which SPM could reach only
 * over a piece of two. A word seen before, and whatever else there is, is spelled in byte tokens: llama.cpp
 * reads nothing but the two digits of `<0x41>`, so a number after it makes the token another one.
 */
import { byteToken, type Vocabulary } from "./vocabulary.js";

/** Adds the tokens of `text` to a vocabulary; returns their ids in order. */
export function addRecitation(vocabulary: Vocabulary, text: string): number[] {
  return (text.match(/ ?[\p{L}\p{N}]+|[^]/gu) ?? []).flatMap((piece) => {
    const whole = piece.startsWith(" ") ? piece.length > 1 : Array.from(piece).length >= 3;
    if (whole && !vocabulary.has(piece)) return [vocabulary.add(piece)];
    return [...Buffer.from(piece)].map((byte) => vocabulary.add(`${byteToken(byte)}${vocabulary.size}`, "byte"));
  });
}
