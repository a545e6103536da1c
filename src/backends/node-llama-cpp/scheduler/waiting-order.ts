/**
 * Who of those that wait for a slot goes next. Between callers (scopes) turns are handed out as in start-time fair queuing
 * (Goyal, Vin and Cheng, SIGCOMM 1996, with one request as the unit of work): who asks for a hundred things at once has a
 * hundred turns behind each other, and who asks for one goes in after the first of them.
 */
import type { Priority } from "../../../inference.js";

/** Whose request it is and how urgent. */
export interface Standing {
  readonly priority: Priority;
  readonly scope: string;
}

/** A request in the queue. */
export interface Waiting {
  readonly priority: Priority;
  /** From {@link FairTurns}: the lower goes first. */
  readonly turn: number;
  readonly sinceMs: number;
}

const LEVELS: Record<Priority, number> = { interactive: 0, system: 1, background: 2 };
/** After so long a request counts as one level more urgent, so that none waits for ever while more urgent ones keep coming. */
const RISE_MS = 5_000;

/** Negative if `a` goes before `b`. Among equals the caller's own order, that of arrival, is to stay. */
export function compareWaiting(a: Waiting, b: Waiting, nowMs: number): number {
  return levelOf(a, nowMs) - levelOf(b, nowMs) || a.turn - b.turn;
}

function levelOf({ priority, sinceMs }: Waiting, nowMs: number): number {
  return Math.max(0, LEVELS[priority] - Math.floor((nowMs - sinceMs) / RISE_MS));
}

/** More scopes than this are not remembered once they have no turn to come. */
const KEPT_SCOPES = 256;

/** Hands out turns. */
export class FairTurns {
  readonly #last = new Map<string, number>();
  #current = 0;

  /** The turn of a request whose scope has no other. */
  get next(): number {
    return this.#current + 1;
  }

  /** The turn of a new request: one after the last of its scope, and never before the present one. */
  take(scope: string): number {
    const turn = Math.max(this.next, (this.#last.get(scope) ?? 0) + 1);
    this.#last.set(scope, turn);
    return turn;
  }

  /** The turns of this scope after `last` will not be used. */
  giveBack(scope: string, last: number): void {
    if (last > this.#current) this.#last.set(scope, last);
    else this.#last.delete(scope);
  }

  /** A request with this turn has been let in. */
  letIn(turn: number): void {
    this.#current = Math.max(this.#current, turn);
    if (this.#last.size <= KEPT_SCOPES) return;
    for (const [scope, last] of this.#last) if (last <= this.#current) this.#last.delete(scope);
  }
}
