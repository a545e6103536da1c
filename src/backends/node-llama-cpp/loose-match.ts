/** Looks for the marks of a chat format in text, which models write with more or fewer spaces than they were taught. */

/** Where a mark stands. `end` is undefined where the text ends before the mark does. */
export interface Match {
  readonly start: number;
  readonly end: number | undefined;
}

/** Where `mark` ends that begins at `start`; `"partial"` if the text ends first; white space counts in neither. */
export function matchAt(text: string, start: number, mark: string): number | "partial" | undefined {
  let at = start;
  for (const wanted of mark) {
    if (isSpace(wanted)) continue;
    while (at > start && at < text.length && isSpace(text.charAt(at))) at++;
    if (at >= text.length) return "partial";
    if (!text.startsWith(wanted, at)) return undefined;
    at += wanted.length;
  }
  return at;
}

/** The first place where `matches` finds anything, whole or begun, looking only at that character of the mark. */
export function findFirst(
  text: string,
  first: string,
  matches: (start: number) => number | "partial" | undefined,
): Match | undefined {
  for (let start = text.indexOf(first); start !== -1; start = text.indexOf(first, start + 1)) {
    const end = matches(start);
    if (end !== undefined) return { start, end: end === "partial" ? undefined : end };
  }
  return undefined;
}

function isSpace(character: string): boolean {
  return character === " " || character === "\n" || character === "\t" || character === "\r";
}
