/**
 * How many prompt tokens one step evaluates: as many as keep a step short, for a step is what a decoding slot, a short
 * prompt and an abort wait for; but no fewer than the engine works well with. What a step takes differs by file, library
 * and machine by a factor of thousands, so it is learned from the steps themselves.
 */

const SIZES = [32, 64, 128, 256, 512];
const FIRST = 128;
/** While others decode: they want their next token. More than this many tokens would not help the prompt either. */
const SHARED = { limitMs: 100, most: 128 };
/** While nobody waits for anything but an abort. */
const ALONE = { limitMs: 500, most: Infinity };
/** A size at which a token takes so many times as long as at the best one is not used to make steps shorter. */
const WASTEFUL = 1.25;
/** How much a new time counts against what is known of its size. */
const NEWEST_COUNTS = 0.3;
/** Sizes that are not used are thought a little better of with each step, so that a time that was bad luck is tried again. */
const FADE = 0.98;

export class SliceSizes {
  readonly #sizes: readonly number[];
  /** What a step of each size that was tried takes. */
  readonly #ms = new Map<number, number>();
  #isWarm = false;

  constructor(batchSize: number) {
    const fitting = SIZES.filter((size) => size <= batchSize);
    this.#sizes = fitting.length > 0 ? fitting : [batchSize];
  }

  /** `isShared`: other slots decode meanwhile. */
  choose(isShared: boolean): number {
    const { limitMs, most } = isShared ? SHARED : ALONE;
    const sizes = this.#sizes.filter((size, index) => index === 0 || size <= most);
    if (this.#ms.size === 0) return sizes.findLast((size) => size <= FIRST) ?? FIRST;
    const best = Math.min(...[...this.#ms].map(([size, ms]) => ms / size));
    const good = sizes.filter((size) => (this.#ms.get(size) ?? 0) <= WASTEFUL * best * size);
    return good.findLast((size) => this.#expectedMs(size) <= limitMs) ?? good[0] ?? FIRST;
  }

  /** A step with so many prompt tokens took so long. The first one says nothing: it may have read the weights from a disk. */
  record(tokens: number, ms: number): void {
    if (!this.#sizes.includes(tokens)) return;
    if (!this.#isWarm) {
      this.#isWarm = true;
      return;
    }
    for (const [size, known] of this.#ms) if (size !== tokens) this.#ms.set(size, known * FADE);
    const known = this.#ms.get(tokens);
    this.#ms.set(tokens, known === undefined ? ms : known + NEWEST_COUNTS * (ms - known));
  }

  /** What is not known is taken to grow with the tokens, from the nearest size that is. */
  #expectedMs(size: number): number {
    const known = this.#ms.get(size);
    if (known !== undefined) return known;
    const [nearest] = [...this.#ms].toSorted(([a], [b]) => distance(a, size) - distance(b, size));
    return nearest === undefined ? 0 : (nearest[1] * size) / nearest[0];
  }
}

function distance(a: number, b: number): number {
  return Math.abs(Math.log2(a / b));
}
