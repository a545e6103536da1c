/** Looks for the marks of a chat format: what opens and closes thoughts and calls, and what ends a turn. */
import { findFirst, matchAt } from "./loose-match.js";

/** How a format writes calls. Between the prefixes stands the name; between `paramsPrefix` and `suffix` the arguments. */
export interface CallSyntax {
  /** Before the first call of a turn. */
  readonly section: string;
  readonly prefix: string;
  readonly paramsPrefix: string;
  readonly suffix: string;
  readonly between: string;
  /** After the last call. */
  readonly sectionEnd: string;
}

export interface TurnFormat {
  /** `isOpen`: the prompt ends within a thought. */
  readonly thought: { readonly open: string | undefined; readonly close: string; readonly isOpen: boolean } | undefined;
  /** Empty where the model may call nothing. */
  readonly calls: readonly CallSyntax[];
  /** The format knows several calls in a turn, and text after them; in others only further calls may follow a call. */
  readonly isParallel: boolean;
  /** What ends the turn, where the vocabulary has no token for it. */
  readonly ends: readonly string[];
  /** Marks that say no more than that text begins. */
  readonly textMarks?: readonly string[];
}

export interface TurnTool {
  readonly name: string;
  readonly takesNothing: boolean;
}

/** Which tool is being called, in which syntax, by their positions. */
export interface CallKind {
  readonly tool: number;
  readonly syntax: number;
}

/** Where a turn is, as far as that decides which marks there can be. */
export interface TurnState {
  readonly isThinking: boolean;
  readonly hasCalled: boolean;
}

/** A mark that was found at the front-most place; `end` is undefined as long as it may still become another text. */
export type Found = { readonly start: number; readonly end: number | undefined } & (
  { readonly kind: "thought" | "end" | "ignored" } | { readonly kind: "call"; readonly call: CallKind }
);

/**
 * What stands behind the name, parted after its first character: with that the name is known to be whole, and from there
 * on the model can be held to the format.
 */
export function behindName({ paramsPrefix }: CallSyntax): { readonly delimiter: string; readonly rest: string } {
  const delimiter = /^\s*\S/u.exec(paramsPrefix)?.[0] ?? "";
  return { delimiter, rest: paramsPrefix.slice(delimiter.length) };
}

const NAME_CHARACTER = /[A-Za-z0-9_-]/;

/** Of marks that begin at one place the whole one, else the longest. */
export function findMark(
  text: string,
  format: TurnFormat,
  tools: readonly TurnTool[],
  state: TurnState,
): Found | undefined {
  let best: Found | undefined;
  for (const found of candidates(text, format, tools, state)) {
    const isBetter =
      best === undefined ||
      found.start < best.start ||
      (found.start === best.start && (found.end ?? 0) > (best.end ?? 0));
    if (isBetter) best = found;
  }
  return best;
}

function* candidates(
  text: string,
  { thought, ends, calls, textMarks = [] }: TurnFormat,
  tools: readonly TurnTool[],
  { isThinking, hasCalled }: TurnState,
): Iterable<Found> {
  for (const mark of ends) yield* plainMark(text, "end", mark);
  const border = isThinking ? thought?.close : thought?.open;
  if (border !== undefined) yield* plainMark(text, "thought", border);
  if (isThinking) return;
  for (const mark of textMarks) yield* plainMark(text, "ignored", mark);
  for (const [index, syntax] of calls.entries()) {
    const { section, prefix, between, sectionEnd } = syntax;
    if (hasCalled) yield* plainMark(text, "ignored", sectionEnd);
    const openings = hasCalled ? [between + prefix, prefix, section + prefix] : [section + prefix, prefix];
    // a mark of nothing but white space is everywhere
    for (const opening of new Set(openings))
      if (opening.trim() !== "") yield* callMark(text, opening, syntax, index, tools);
  }
}

function* plainMark(text: string, kind: "thought" | "end" | "ignored", mark: string): Iterable<Found> {
  const found = mark.trim() === "" ? undefined : findFirst(text, first(mark), (start) => matchAt(text, start, mark));
  if (found !== undefined) yield { ...found, kind };
}

/** A call begins with the name of a tool, and what ends the name. */
function* callMark(
  text: string,
  opening: string,
  callSyntax: CallSyntax,
  syntax: number,
  tools: readonly TurnTool[],
): Iterable<Found> {
  const { delimiter } = behindName(callSyntax);
  let tool = 0;
  const found = findFirst(text, first(opening), (start) => {
    const prefix = matchAt(text, start, opening);
    if (typeof prefix !== "number") return prefix;
    let best: number | "partial" | undefined;
    for (const [index, { name }] of tools.entries()) {
      const end = openingEnd(text, start, opening + name, delimiter);
      if (end === undefined) continue;
      best = end;
      tool = index;
      if (end !== "partial") break;
    }
    return best;
  });
  if (found !== undefined) yield { ...found, kind: "call", call: { tool, syntax } };
}

function openingEnd(text: string, start: number, named: string, delimiter: string): number | "partial" | undefined {
  const end = matchAt(text, start, named + delimiter);
  if (typeof end !== "number" || delimiter !== "") return end;
  // nothing but white space ends the name, which may be the beginning of another one
  const next = text.charAt(end);
  if (next === "") return "partial";
  return NAME_CHARACTER.test(next) ? undefined : end;
}

function first(mark: string): string {
  return mark.trimStart().charAt(0);
}
