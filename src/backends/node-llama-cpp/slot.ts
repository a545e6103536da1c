/** One parallel lane: a sequence of a context, what it holds, and the request that has it. */
import type { Completion } from "../backend.js";
import { reusableTokens, type SlotCache } from "./scheduler/slot-choice.js";
import { SlotRun, type Job, type Sequence } from "./slot-run.js";
import type { PieceCache } from "./text.js";

/** A job and the promise that its caller holds. */
export interface Ticket {
  readonly job: Job;
  readonly resolve: (completion: Completion) => void;
  readonly reject: (reason: unknown) => void;
}

/** What all slots of a model share. */
export interface SlotsOwner {
  readonly pieces: PieceCache;
  /** With special tokens as text. */
  readonly structuredPieces: PieceCache;
  /** Jobs that have been given a slot so far, of any group. */
  readonly assigned: number;
}

export class Slot {
  readonly index: number;
  readonly #newSequence: () => Sequence;
  #sequence: Sequence;
  /** The slot's owner; it runs from the next pause between two steps on. */
  ticket: Ticket | undefined;
  run: SlotRun | undefined;
  /** What the sequence holds, while no run has it; each run leaves a list of its own. */
  #tokens: readonly number[] = [];
  /** Whose tokens they are. */
  #scope = "";
  /** How many jobs had been given a slot when the last run on this one ended. */
  #usedAt = 0;

  /** `newSequence`: a fresh one of the context, now and where this one has become unusable. */
  constructor(index: number, newSequence: () => Sequence) {
    this.index = index;
    this.#newSequence = newSequence;
    this.#sequence = newSequence();
  }

  /** Its job has not begun. */
  get isNew(): boolean {
    return this.ticket !== undefined && this.run === undefined;
  }

  get hasEnded(): boolean {
    const { ticket, run } = this;
    return ticket?.job.signal.aborted === true || run?.completion !== undefined || run?.failure !== undefined;
  }

  /** Its job has to leave or to enter before the next step. */
  get needsPause(): boolean {
    return this.isNew || this.hasEnded;
  }

  cache(assigned: number, busyNeighbours: number): SlotCache {
    const canCut = !this.#sequence.needsCheckpoints;
    return { tokens: this.#tokens, scope: this.#scope, canCut, age: assigned - this.#usedAt, busyNeighbours };
  }

  /** Cuts the sequence down to what the job can go on from; one that cannot be cut is replaced. */
  async enter({ assigned, pieces, structuredPieces }: SlotsOwner, busy: number, onResume: () => void): Promise<void> {
    if (this.ticket === undefined) return;
    const { job } = this.ticket;
    let cached = reusableTokens(this.cache(assigned, busy), job);
    try {
      await cut(this.#sequence, cached);
    } catch {
      cached = 0;
      await this.#replace();
    }
    this.#tokens = [];
    this.run = new SlotRun(job, this.#sequence, job.structure === undefined ? pieces : structuredPieces, cached);
    job.request.onResume = onResume;
  }

  /** Ends the run; the sequence keeps what is in it, unless that has become doubtful. */
  async leave(assigned: number): Promise<void> {
    const { run } = this;
    if (run === undefined) return;
    const isQuiet = await run.close().then(
      () => true,
      () => false,
    );
    if (!isQuiet || !run.isSound) return this.#replace();
    this.#tokens = this.#sequence.contextTokens;
    this.#scope = run.job.scope;
    this.#usedAt = assigned;
  }

  /** A sequence that cannot be trusted is given back for a fresh one; if that fails, the group is broken. */
  async #replace(): Promise<void> {
    this.#tokens = [];
    await this.#sequence.dispose();
    this.#sequence = this.#newSequence();
  }
}

/** Leaves the first `length` tokens in the sequence. Nothing is shifted: what is kept keeps its place. */
async function cut(sequence: Sequence, length: number): Promise<void> {
  const end = sequence.nextTokenIndex;
  if (length === 0 && end > 0) await sequence.clearHistory();
  else if (length < end) await sequence.eraseContextTokenRanges([{ start: length, end }]);
  if (sequence.nextTokenIndex !== length) throw new Error("The sequence does not hold what it should");
}
