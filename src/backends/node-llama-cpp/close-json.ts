/** Makes valid JSON of JSON whose end is missing. */

interface Open {
  readonly kind: "array" | "object";
  awaits: keyof typeof MISSING;
}

/** What has to be added, besides the bracket, where an array or object ends too early. */
const MISSING = { first: "", next: "", value: "null", colon: ":null", key: '"":null' };
const LITERALS = ["true", "false", "null"];

/**
 * The text to put after `text`, the beginning of valid JSON, so that the whole is valid JSON: `""` if it is complete.
 * What was streamed cannot be taken back, so it only ever adds: `null` where a value is missing, an empty key after a
 * comma in an object. The whole need not obey the schema that the beginning was written for.
 */
export function closeJson(text: string): string {
  const open: Open[] = [];
  let isStarted = false;
  let tail = "";
  const endValue = () => {
    const around = open.at(-1);
    if (around === undefined) return;
    const wasKey = around.kind === "object" && around.awaits !== "value";
    around.awaits = wasKey ? "colon" : "next";
  };
  let at = 0;
  while (at < text.length) {
    const char = text.charAt(at);
    const around = open.at(-1);
    let length = 1;
    if (/\s/.test(char)) {
      // says nothing
    } else if (char === "{" || char === "[") {
      open.push({ kind: char === "{" ? "object" : "array", awaits: "first" });
    } else if (char === "}" || char === "]") {
      open.pop();
      endValue();
    } else if (char === "," || char === ":") {
      if (around !== undefined) around.awaits = char === "," && around.kind === "object" ? "key" : "value";
    } else {
      ({ length, missing: tail } = char === '"' ? readString(text, at) : readWord(text, at));
      endValue();
    }
    isStarted ||= !/\s/.test(char);
    at += length;
  }
  if (!isStarted) return "null";
  // what lies around the innermost one has that one as its value
  const innermost = open.at(-1);
  const brackets = open.toReversed().map(({ kind }) => (kind === "object" ? "}" : "]"));
  return tail + (innermost === undefined ? "" : MISSING[innermost.awaits]) + brackets.join("");
}

interface Read {
  readonly length: number;
  readonly missing: string;
}

function readString(text: string, start: number): Read {
  let at = start + 1;
  while (at < text.length) {
    const char = text.charAt(at);
    if (char === '"') return { length: at + 1 - start, missing: "" };
    const length = char !== "\\" ? 1 : text.charAt(at + 1) === "u" ? 6 : 2;
    const over = at + length - text.length;
    // a lone backslash becomes two, digits of a code become zeros
    if (over > 0) return { length: text.length - start, missing: (length === 2 ? "\\" : "0".repeat(over)) + '"' };
    at += length;
  }
  return { length: text.length - start, missing: '"' };
}

/** A number or a literal. */
function readWord(text: string, start: number): Read {
  let end = start + 1;
  while (end < text.length && /[^\s,:[\]{}"]/.test(text.charAt(end))) end++;
  const word = text.slice(start, end);
  const literal = LITERALS.find((each) => each.startsWith(word));
  const missing = literal === undefined ? (/[-+.eE]$/.test(word) ? "0" : "") : literal.slice(word.length);
  return { length: end - start, missing: end === text.length ? missing : "" };
}
