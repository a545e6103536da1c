/** What a grammar must be before native code may read it; whether it can be read is for the engine to say. */
import { InvalidOptionError } from "../../errors.js";

export const MAX_GRAMMAR_BYTES = 65_536;
/** The engine's parser calls itself for each parenthesis: 32,000 of them end the process, 10,000 do not (measured). */
export const MAX_NESTING = 256;
/** Each repetition becomes rules of its own, in each request's state. */
const MAX_REPETITIONS = 20_000;

/** @throws InvalidOptionError of the option `grammar`. */
export function checkGrammar(text: string): void {
  const fault = grammarFault(text);
  if (fault !== undefined) throw new InvalidOptionError("grammar", fault, text);
}

/** What the text would have to be, or `undefined` if it is. */
export function grammarFault(text: string, maxBytes = MAX_GRAMMAR_BYTES): string | undefined {
  if (text.trim() === "") return "GBNF text that is not empty";
  if (Buffer.byteLength(text) > maxBytes) return `GBNF text of at most ${maxBytes} bytes`;
  // it would be read up to there only, and a half grammar allows other texts than the whole
  if (text.includes("\0")) return "GBNF text without NUL characters";
  if (!text.isWellFormed()) return "well-formed GBNF text (it has half of a surrogate pair)";
  const { nesting, repetitions, isReversed } = measure(text);
  if (nesting > MAX_NESTING) return `GBNF text with at most ${MAX_NESTING} parentheses inside of each other`;
  if (repetitions > MAX_REPETITIONS) return `GBNF text whose {…} make at most ${MAX_REPETITIONS} repetitions together`;
  // the engine counts down from below zero, until there is no memory left (measured)
  if (isReversed) return "GBNF text without a {most,least}: write {least,most}";
  return undefined;
}

/** How deep parentheses lie inside of each other, and the sum of the repetitions; not in literals, sets and comments. */
function measure(text: string): { nesting: number; repetitions: number; isReversed: boolean } {
  let nesting = 0;
  let depth = 0;
  let repetitions = 0;
  let isReversed = false;
  for (let at = 0; at < text.length; at++) {
    const char = text.charAt(at);
    if (char === '"' || char === "[") at = endOf(text, at, char === '"' ? '"' : "]");
    else if (char === "#") at = indexOrEnd(text, "\n", at);
    else if (char === "(") nesting = Math.max(nesting, ++depth);
    // never below zero: what closes too much must not hide what opens later
    else if (char === ")") depth = Math.max(0, depth - 1);
    else if (char === "{") {
      const counts = text.slice(at, indexOrEnd(text, "}", at)).match(/\d+/g) ?? [];
      const [least = 0, most = least] = counts.map(Number);
      repetitions += Math.max(least, most);
      isReversed ||= most < least;
    }
  }
  return { nesting, repetitions, isReversed };
}

function endOf(text: string, start: number, closing: string): number {
  let at = start + 1;
  while (at < text.length && text.charAt(at) !== closing) at += text.charAt(at) === "\\" ? 2 : 1;
  return at;
}

function indexOrEnd(text: string, wanted: string, from: number): number {
  const index = text.indexOf(wanted, from);
  return index === -1 ? text.length : index;
}
