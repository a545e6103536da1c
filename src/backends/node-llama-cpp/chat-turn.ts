/**
 * What a model says in its turn, told apart: text, reasoning and tool calls. Pieces come token by token and marks are
 * found across their borders, so what could be the beginning of a mark is held back until it is known. White space
 * beside a mark belongs to nothing.
 */
import { JsonEnd } from "./json-end.js";
import { matchAt } from "./loose-match.js";
import { behindName, findMark, type CallKind, type Found, type TurnFormat, type TurnTool } from "./turn-marks.js";

/** Told where the turn is, so that what comes next can be restricted. */
export interface TurnRules {
  /** False if `after`, which came with the call's opening, cannot begin its arguments: then it is no call. */
  openCall(call: CallKind, after: string): boolean;
  closeCall(): void;
  openThought(): void;
  closeThought(): void;
}

export type TurnPiece =
  | { readonly type: "text" | "reasoning"; readonly text: string }
  | { readonly type: "call"; readonly name: string; readonly arguments: Readonly<Record<string, unknown>> }
  | { readonly type: "end" };

interface OpenCall extends CallKind {
  /** Where its opening ends in what is pending, which begins with it. */
  readonly from: number;
  readonly json: JsonEnd;
}

/** From a character of what is pending up to another. */
interface Place {
  readonly begin: number;
  readonly end: number;
}

export class ChatTurn {
  readonly #format: TurnFormat;
  readonly #tools: readonly TurnTool[];
  readonly #rules: TurnRules;
  #pending = "";
  /** The parts of what is pending that are no text: special tokens, which count for marks only. */
  #hidden: { readonly start: number; readonly end: number }[] = [];
  #isThinking: boolean;
  #call: OpenCall | undefined;
  #hasCalled = false;
  #hasEnded = false;
  /** White space that comes now follows a mark. */
  #isAfterMark = false;
  #pieces: TurnPiece[] = [];

  constructor(format: TurnFormat, tools: readonly TurnTool[], rules: TurnRules) {
    this.#format = format;
    this.#tools = tools;
    this.#rules = rules;
    this.#isThinking = format.thought?.isOpen ?? false;
    this.#isAfterMark = this.#isThinking;
  }

  /** What is certain now. `isHidden`: the text of a special token. */
  push(text: string, isHidden = false): TurnPiece[] {
    if (this.#hasEnded) return [];
    if (isHidden) this.#hidden.push({ start: this.#pending.length, end: this.#pending.length + text.length });
    this.#pending += text;
    while (!this.#hasEnded && (this.#call === undefined ? this.#scan() : this.#readCall(this.#call)));
    return this.#pieces.splice(0);
  }

  /** No more comes. Where the turn was cut, a mark or call that had begun is left out. */
  end(isCut: boolean): TurnPiece[] {
    if (this.#hasEnded) return [];
    const call = this.#call;
    if (call !== undefined && !isCut) this.#endCall(call);
    else if (call === undefined) {
      const held = this.#find();
      const isBegun = isCut && held !== undefined;
      this.#give(isBegun ? this.#pending.slice(0, held.start).trimEnd().length : this.#pending.length);
    }
    this.#hasEnded = true;
    return this.#pieces.splice(0);
  }

  /** Looks for a mark; true if there may be another one behind it. */
  #scan(): boolean {
    const found = this.#find();
    const before = this.#pending.slice(0, found?.start).trimEnd().length;
    this.#give(before);
    if (found?.end === undefined || this.#hasEnded) return false;
    const start = found.start - before;
    const end = found.end - before;
    if (found.kind === "call") {
      const { call } = found;
      if (this.#rules.openCall(call, this.#pending.slice(end))) {
        this.#drop(start);
        this.#call = { ...call, from: end - start, json: new JsonEnd() };
      } else this.#give(end);
      return true;
    }
    this.#drop(end);
    this.#isAfterMark = true;
    if (found.kind === "end") {
      this.#pieces.push({ type: "end" });
      this.#hasEnded = true;
    } else if (found.kind === "thought") {
      this.#isThinking = !this.#isThinking;
      if (this.#isThinking) this.#rules.openThought();
      else this.#rules.closeThought();
    }
    return true;
  }

  #find(): Found | undefined {
    const state = { isThinking: this.#isThinking, hasCalled: this.#hasCalled };
    return findMark(this.#pending, this.#format, this.#tools, state);
  }

  /** Reads on in a call; true if it has ended. */
  #readCall(call: OpenCall): boolean {
    const given = this.#argumentsOf(call);
    if (given === undefined) return false;
    if (given === "none") return this.#finishCall(call);
    const suffix = this.#format.calls[call.syntax]?.suffix ?? "";
    const close = matchAt(this.#pending, skipSpace(this.#pending, given.end), suffix);
    if (close === "partial") return false;
    return this.#finishCall(call, given, close);
  }

  /** Where the arguments are; undefined as long as they have not ended. */
  #argumentsOf({ tool, syntax, from, json }: OpenCall): Place | "none" | undefined {
    const text = this.#pending;
    const callSyntax = this.#format.calls[syntax];
    const rest = callSyntax === undefined ? "" : behindName(callSyntax).rest;
    const behind = matchAt(text, skipSpace(text, from), rest);
    if (typeof behind !== "number") return behind === "partial" ? undefined : "none";
    const begin = skipSpace(text, behind);
    if (begin === text.length) return undefined;
    if (text.charAt(begin) !== "{") return this.#tools[tool]?.takesNothing ? { begin, end: begin } : "none";
    const length = json.find(text.slice(begin));
    return length === undefined ? undefined : { begin, end: begin + length };
  }

  /** The turn ends within a call: one that lacks no more than its closing is one. */
  #endCall(call: OpenCall): void {
    const given = this.#argumentsOf(call);
    if (given === undefined || given === "none") this.#finishCall(call);
    else this.#finishCall(call, given, this.#pending.length);
  }

  /** `close` is where the call ends; undefined if it is none, and then it was text. True, for it has ended. */
  #finishCall(call: OpenCall, place?: Place, close?: number): true {
    const name = this.#tools[call.tool]?.name ?? "";
    const given = place && parseObject(this.#pending.slice(place.begin, place.end));
    this.#call = undefined;
    this.#rules.closeCall();
    if (given === undefined || close === undefined) this.#give(this.#pending.length);
    else {
      this.#drop(close);
      this.#pieces.push({ type: "call", name, arguments: given });
      this.#hasCalled = true;
      this.#isAfterMark = true;
    }
    return true;
  }

  /** The first `length` characters of what is pending are text, or reasoning. */
  #give(length: number): void {
    const visible = this.#visible(length);
    const text = this.#isAfterMark ? visible.trimStart() : visible;
    if (text !== "" && this.#hasCalled && !this.#format.isParallel && !this.#isThinking) {
      // such a model goes on with the result, which it cannot know
      this.#pieces.push({ type: "end" });
      this.#hasEnded = true;
      return;
    }
    this.#drop(length);
    if (text === "") return;
    this.#isAfterMark = false;
    this.#pieces.push({ type: this.#isThinking ? "reasoning" : "text", text });
  }

  #visible(length: number): string {
    let text = "";
    let at = 0;
    for (const { start, end } of this.#hidden) {
      if (start >= length) break;
      text += this.#pending.slice(at, start);
      at = end;
    }
    return text + this.#pending.slice(at, Math.max(at, length));
  }

  #drop(length: number): void {
    this.#pending = this.#pending.slice(length);
    this.#hidden = this.#hidden
      .map(({ start, end }) => ({ start: Math.max(0, start - length), end: end - length }))
      .filter(({ end }) => end > 0);
  }
}

function skipSpace(text: string, from: number): number {
  return text.length - text.slice(from).trimStart().length;
}

function parseObject(text: string): Readonly<Record<string, unknown>> | undefined {
  if (text.trim() === "") return {};
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
