/** A place where a test holds something: it sees who has arrived and decides how they go on. */
export class Gate {
  readonly #held: { go(): void; fail(error: unknown): void }[] = [];
  readonly #watchers: { count: number; resolve(): void }[] = [];
  #arrivals = 0;
  #isOpen = false;

  /** How many have come so far, let through or not. */
  get arrivals(): number {
    return this.#arrivals;
  }

  /** Resolves when `count` have arrived in all. */
  arrived(count = 1): Promise<void> {
    if (this.#arrivals >= count) return Promise.resolve();
    return new Promise((resolve) => this.#watchers.push({ count, resolve }));
  }

  /** Lets the first `count` of those who wait go on. */
  pass(count = 1): void {
    for (const { go } of this.#held.splice(0, count)) go();
  }

  /** Lets everyone go on, now and later. */
  open(): void {
    this.#isOpen = true;
    this.pass(Infinity);
  }

  /** Makes everyone who waits fail. */
  fail(error: unknown): void {
    for (const held of this.#held.splice(0)) held.fail(error);
  }

  /** For the one who is held. With a signal, an abort ends the wait with its reason. */
  async enter(signal?: AbortSignal): Promise<void> {
    this.#arrivals += 1;
    for (const watcher of this.#watchers.splice(0)) {
      if (watcher.count <= this.#arrivals) watcher.resolve();
      else this.#watchers.push(watcher);
    }
    if (this.#isOpen) return;
    await new Promise<void>((resolve, reject) => {
      const place = { go: resolve, fail: reject };
      this.#held.push(place);
      const leave = () => {
        const index = this.#held.indexOf(place);
        if (index !== -1) this.#held.splice(index, 1);
        reject(signal?.reason);
      };
      if (signal?.aborted) leave();
      else signal?.addEventListener("abort", leave, { once: true });
    });
  }
}
