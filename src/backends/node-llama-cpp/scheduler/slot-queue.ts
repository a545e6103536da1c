/** Who gets a slot, who waits, who is turned away. Decisions only: no engine, no promise; the time is told. */
import type { QueueLimit } from "../../backend.js";
import { HoldTimes } from "./hold-times.js";
import { compareWaiting, FairTurns, type Standing, type Waiting } from "./waiting-order.js";

/** What `admit` decided: a slot, a place in the queue (from 1), or which limit is reached. */
export type Admission =
  | { readonly type: "slot"; readonly slot: number }
  | { readonly type: "queued"; readonly position: number }
  | { readonly type: "full"; readonly of: "model" | "all"; readonly limit: number; readonly queued: number };

/** Picks one of the free slots, of which there is at least one, for a job. */
type PickSlot<Job> = (job: Job, free: readonly [number, ...number[]]) => number;

/** A job that waited, and the slot that it has been given. */
export interface Assignment<Job> {
  readonly slot: number;
  readonly job: Job;
}

export interface SlotQueueOptions<Job> {
  readonly slots: number;
  readonly maxQueue: number;
  /** What this queue shares with those of other models. */
  readonly shared?: QueueLimit | undefined;
  /** Default: the slot that has been free for longest. */
  readonly pick?: PickSlot<Job> | undefined;
  /** Default: all alike, so first come, first served. */
  readonly standing?: ((job: Job) => Standing) | undefined;
}

interface Place<Job> extends Waiting {
  readonly job: Job;
  readonly scope: string;
  /** The turn that it would have if nothing else of its scope had been there. */
  readonly firstTurn: number;
}

const ALIKE: Standing = { priority: "interactive", scope: "" };
/** How long a job holds its slot, before one has ended. */
const FIRST_GUESS_MS = 1_000;

/** Slots and the bounded queue before them. */
export class SlotQueue<Job> {
  readonly #options: SlotQueueOptions<Job>;
  readonly #free: number[];
  readonly #turns = new FairTurns();
  /** When each slot that is taken was taken. */
  readonly #takenAt = new Map<number, number>();
  /** In the order of arrival. */
  #waiting: Place<Job>[] = [];
  readonly #holds = new HoldTimes(FIRST_GUESS_MS);

  constructor(options: SlotQueueOptions<Job>) {
    this.#options = options;
    this.#free = Array.from({ length: options.slots }, (_, slot) => slot);
  }

  /** Jobs that wait for a slot. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** A free slot is given at once; only a job that has to wait for one counts against the limits. */
  admit(job: Job, nowMs: number): Admission {
    const { priority, scope } = this.#options.standing?.(job) ?? ALIKE;
    if (this.#free.length > 0) {
      const slot = this.#take(job, this.#turns.take(scope), nowMs);
      return { type: "slot", slot };
    }
    const { maxQueue, shared } = this.#options;
    if (this.#waiting.length >= maxQueue)
      return { type: "full", of: "model", limit: maxQueue, queued: this.#waiting.length };
    if (shared?.enter() === false) return { type: "full", of: "all", limit: shared.limit, queued: shared.waiting };
    const { next: firstTurn } = this.#turns;
    const place: Place<Job> = { job, priority, scope, firstTurn, turn: this.#turns.take(scope), sinceMs: nowMs };
    const before = this.#waiting.filter((other) => compareWaiting(other, place, nowMs) <= 0).length;
    this.#waiting.push(place);
    return { type: "queued", position: before + 1 };
  }

  /** Takes a job out of the queue. False if it is not there (any more). */
  withdraw(job: Job): boolean {
    const place = this.#waiting.find((each) => each.job === job);
    if (place === undefined) return false;
    this.#leave(place);
    this.#moveUp(place);
    return true;
  }

  /**
   * Takes slots back. The jobs whose turn it is get them, each the one that suits it best, which is why slots that become
   * free together are to be released together.
   */
  release(slots: readonly number[], nowMs: number): Assignment<Job>[] {
    for (const slot of slots) {
      this.#holds.record(nowMs - (this.#takenAt.get(slot) ?? nowMs));
      this.#takenAt.delete(slot);
    }
    this.#free.push(...slots);
    const assigned: Assignment<Job>[] = [];
    while (this.#free.length > 0) {
      const next = this.#next(nowMs);
      if (next === undefined) break;
      this.#leave(next);
      assigned.push({ slot: this.#take(next.job, next.turn, nowMs), job: next.job });
    }
    return assigned;
  }

  /** Empties the queue and returns what was in it. */
  drain(): Job[] {
    const jobs = this.#waiting.map(({ job }) => job);
    this.#waiting = [];
    for (const _ of jobs) this.#options.shared?.leave();
    return jobs;
  }

  /** How long one more job would wait, by how long the last ones held their slots. */
  expectedWaitMs(nowMs: number): number {
    const longestMs = nowMs - Math.min(nowMs, ...this.#takenAt.values());
    return this.#holds.expectedWaitMs(this.#waiting.length, this.#options.slots, longestMs);
  }

  #next(nowMs: number): Place<Job> | undefined {
    return this.#waiting.reduce<Place<Job> | undefined>(
      (best, place) => (best === undefined || compareWaiting(place, best, nowMs) < 0 ? place : best),
      undefined,
    );
  }

  /** A turn that was not used counts against nobody: what comes after it in its scope has the turns that it had without. */
  #moveUp({ scope, turn: free }: Place<Job>): void {
    let last = free - 1;
    this.#waiting = this.#waiting.map((place) => {
      if (place.scope !== scope || place.turn < free) return place;
      last = Math.max(place.firstTurn, last + 1);
      return { ...place, turn: last };
    });
    this.#turns.giveBack(scope, last);
  }

  #leave(place: Place<Job>): void {
    this.#waiting = this.#waiting.filter((other) => other !== place);
    this.#options.shared?.leave();
  }

  #take(job: Job, turn: number, nowMs: number): number {
    const [first, ...rest] = this.#free;
    if (first === undefined) throw new RangeError("No slot is free");
    const slot = this.#options.pick?.(job, [first, ...rest]) ?? first;
    this.#free.splice(this.#free.indexOf(slot), 1);
    this.#takenAt.set(slot, nowMs);
    this.#turns.letIn(turn);
    return slot;
  }
}
