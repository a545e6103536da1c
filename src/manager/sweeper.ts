import type { Clock } from "../api.js";

/** One timer for all models, which runs only while there is something to look at. */
export class Sweeper {
  readonly #clock: Clock;
  readonly #onTick: () => void;
  #timer: { readonly handle: unknown; readonly dueAt: number; readonly isAwaited: boolean } | undefined;

  constructor(clock: Clock, onTick: () => void) {
    this.#clock = clock;
    this.#onTick = onTick;
  }

  /**
   * The next tick comes after so long at most; `undefined`: none is needed. `isAwaited`: somebody waits for what it does,
   * which keeps the process alive; idle models do not.
   */
  want(delayMs: number | undefined, isAwaited = false): void {
    if (delayMs === undefined) return this.stop();
    const now = this.#clock.now();
    // never later than was wanted before: a tick that comes sooner than it must does no harm
    const dueAt = Math.min(now + delayMs, this.#timer?.dueAt ?? Infinity);
    if (this.#timer?.dueAt === dueAt && this.#timer.isAwaited === isAwaited) return;
    this.stop();
    const handle = this.#clock.setTimeout(
      () => {
        this.#timer = undefined;
        this.#onTick();
      },
      Math.max(0, dueAt - now),
    );
    if (!isAwaited && isReferenced(handle)) handle.unref();
    this.#timer = { handle, dueAt, isAwaited };
  }

  stop(): void {
    if (this.#timer !== undefined) this.#clock.clearTimeout(this.#timer.handle);
    this.#timer = undefined;
  }
}

function isReferenced(handle: unknown): handle is { unref(): void } {
  return typeof handle === "object" && handle !== null && "unref" in handle && typeof handle.unref === "function";
}
