/** What a model has said and its reader has not taken yet. A reader who is too far behind makes the model pause. */
import type { GenerationPart } from "../inference.js";
import type { Consumer } from "./in-flight-request.js";

/** Below 64 KiB by more than one step can add. */
const FULL_BYTES = 60 * 1024;
const RESUME_BYTES = FULL_BYTES / 2;

/** What a reader makes of a piece; `undefined` for one that it passes over. */
export type View<T> = (part: GenerationPart) => T | undefined;

/** A reader who waits. */
interface Pull {
  /** False for a piece that it passes over. */
  offer(part: GenerationPart): boolean;
  end(): void;
  reject(error: unknown): void;
}

const DONE = { done: true, value: undefined } as const;

export class PartBuffer implements Consumer {
  readonly #leave = new AbortController();
  readonly #parts: GenerationPart[] = [];
  readonly #pulls: Pull[] = [];
  #unreadBytes = 0;
  #isRead = false;
  #isBehind = false;
  #end: { readonly error: unknown } | "finished" | undefined;
  onPace: (() => void) | undefined;

  get left(): AbortSignal {
    return this.#leave.signal;
  }

  get isBehind(): boolean {
    return this.#isBehind;
  }

  get hasUnread(): boolean {
    return this.#isRead && this.#parts.length > 0;
  }

  /** From now on somebody reads. Before, nobody can be behind: who awaits the result alone reads nothing. */
  beginReading(): void {
    this.#isRead = true;
    this.#updatePace();
    this.onPace?.();
  }

  readonly onPart = (part: GenerationPart): void => {
    if (this.#end !== undefined) return;
    const [pull] = this.#pulls;
    if (pull !== undefined) {
      if (pull.offer(part)) this.#pulls.shift();
      return;
    }
    this.#parts.push(part);
    this.#count(part, 1);
    if (this.#isRead && this.#parts.length === 1) this.onPace?.();
  };

  /** One promise for each piece, and none on the way: a fast model has some thousand of them in a second. */
  pull<T>(view: View<T>): Promise<IteratorResult<T>> {
    for (let part = this.#take(); part !== undefined; part = this.#take()) {
      const value = view(part);
      if (value !== undefined) return Promise.resolve({ done: false, value });
    }
    if (this.#end === "finished") return Promise.resolve(DONE);
    if (this.#end !== undefined) {
      const { error } = this.#end;
      this.#end = "finished"; // an iterator fails once, then it is done
      return Promise.reject(error);
    }
    return new Promise((resolve, reject) => {
      const offer = (part: GenerationPart) => {
        const value = view(part);
        if (value === undefined) return false;
        resolve({ done: false, value });
        return true;
      };
      this.#pulls.push({ offer, reject, end: () => resolve(DONE) });
    });
  }

  /** The reader wants no more. */
  leave(reason: unknown): void {
    this.#leave.abort(reason);
    this.finish("finished");
    this.#parts.length = 0;
  }

  /** No more parts come. */
  finish(end: { readonly error: unknown } | "finished"): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    for (const pull of this.#pulls.splice(0)) {
      if (this.#end !== "finished") {
        pull.reject(this.#end.error);
        this.#end = "finished";
      } else pull.end();
    }
  }

  #take(): GenerationPart | undefined {
    const part = this.#parts.shift();
    if (part === undefined) return undefined;
    this.#count(part, -1);
    this.onPace?.();
    return part;
  }

  #count(part: GenerationPart, sign: 1 | -1): void {
    this.#unreadBytes += sign * bytesOf(part);
    this.#updatePace();
  }

  #updatePace(): void {
    const isBehind = this.#isRead && this.#unreadBytes > (this.#isBehind ? RESUME_BYTES : FULL_BYTES);
    if (isBehind === this.#isBehind) return;
    this.#isBehind = isBehind;
    if (isBehind) this.onPace?.();
  }
}

/** Of a token with its probability: an object, a short text and two numbers. */
const LIKELY_TOKEN_BYTES = 100;

/** Two bytes for each unit of a string, as JavaScript keeps it at most. */
function bytesOf(part: GenerationPart): number {
  if (part.type === "finish") return 0;
  if (part.type === "tool-call") return 2 * JSON.stringify(part.toolCall).length;
  const logprobs = (part.type === "text" && part.logprobs) || [];
  const likelyTokens = logprobs.reduce((count, { top = [] }) => count + 1 + top.length, 0);
  return 2 * part.text.length + LIKELY_TOKEN_BYTES * likelyTokens;
}
