/**
 * The words of one incarnation that requests change without asking the manager. They lie in shared memory and are
 * changed with `Atomics`; what is this thread's alone are the peak and the notice of the last release (ADR 0003).
 *
 * Admission: read state = open, add one to the leases, read the state again, and give the lease back if it was closed.
 * Withdrawal: close the state first, then look at the leases. Whatever the interleaving, either the
 * request sees the new state or the withdrawal sees the lease.
 *
 * Each incarnation has a block of its own, so a late release of an earlier life can never touch a later one.
 */

/** Admission is open unless `CLOSED`. In `WATCHED` somebody waits for the model to be idle. */
export const LifeState = { CLOSED: 0, READY: 1, WATCHED: 2 } as const;
export type LifeState = (typeof LifeState)[keyof typeof LifeState];

const STATE = 0;
const LEASES = 1;
const PEAK_LEASES = 2;
const WORDS_BYTES = 16;
/** Last use: a plain 8-byte store, which no supported platform tears when aligned; nothing is decided on it alone. */
const BLOCK_BYTES = WORDS_BYTES + 8;

export class ControlBlock {
  readonly #words: Int32Array<SharedArrayBuffer>;
  readonly #lastUse: Float64Array<SharedArrayBuffer>;
  readonly #onUnused: () => void;

  /** `onUnused` is called when the last lease is returned while admission is closed, or watched. */
  constructor(onUnused: () => void) {
    const memory = new SharedArrayBuffer(BLOCK_BYTES);
    this.#words = new Int32Array(memory, 0, 3);
    this.#lastUse = new Float64Array(memory, WORDS_BYTES, 1).fill(NaN);
    this.#onUnused = onUnused;
  }

  /** Lets admission be judged without taking a lease. */
  get isReady(): boolean {
    return Atomics.load(this.#words, STATE) !== LifeState.CLOSED;
  }

  get leases(): number {
    return Atomics.load(this.#words, LEASES);
  }

  get peakLeases(): number {
    return Atomics.load(this.#words, PEAK_LEASES);
  }

  /** Milliseconds since the epoch; `undefined` before the first use. */
  get lastUsedAt(): number | undefined {
    const at = this.#lastUse[0];
    return Number.isNaN(at) ? undefined : at;
  }

  /** Takes a lease if admission is open. Never waits. */
  acquire(now: number): boolean {
    const words = this.#words;
    if (Atomics.load(words, STATE) === LifeState.CLOSED) return false;
    const leases = Atomics.add(words, LEASES, 1) + 1;
    if (Atomics.load(words, STATE) === LifeState.CLOSED) {
      this.#giveBack();
      return false;
    }
    this.#raisePeak(leases);
    this.#lastUse[0] = now;
    return true;
  }

  /** Adds a lease for a caller who holds one already, whatever the state: draining waits for both. */
  retain(): void {
    const leases = Atomics.add(this.#words, LEASES, 1) + 1;
    if (leases > 1) return this.#raisePeak(leases);
    Atomics.sub(this.#words, LEASES, 1);
    throw new TypeError("A lease was retained that is not held.");
  }

  /** Returns a lease. Throws if none is out: then the caller's counting is broken. */
  release(now: number): void {
    this.#lastUse[0] = now;
    this.#giveBack();
  }

  #raisePeak(leases: number): void {
    if (leases > (this.#words[PEAK_LEASES] ?? 0)) Atomics.store(this.#words, PEAK_LEASES, leases);
  }

  #giveBack(): void {
    const before = Atomics.sub(this.#words, LEASES, 1);
    if (before <= 0) {
      Atomics.add(this.#words, LEASES, 1);
      throw new TypeError("A lease was released that was never taken.");
    }
    if (before === 1 && Atomics.load(this.#words, STATE) !== LifeState.READY) this.#onUnused();
  }

  /** The writer's: opens or closes admission. Leases that are out stay out. */
  moveTo(state: typeof LifeState.CLOSED | typeof LifeState.READY): void {
    Atomics.store(this.#words, STATE, state);
  }

  /** The writer's: whether somebody wants to hear when the model is idle. Admission stays as it is. */
  watch(isWatched: boolean): void {
    const [from, to] = isWatched ? [LifeState.READY, LifeState.WATCHED] : [LifeState.WATCHED, LifeState.READY];
    Atomics.compareExchange(this.#words, STATE, from, to);
  }
}
