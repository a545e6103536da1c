import type { Clock } from "../api.js";

/** One timer for all models, which runs only while there is something to look at. */
export class Sweeper {
  readonly #clock: Clock;
  readonly #onTick: () => void;
  #timer: { readonly handle: unknown; readonly delayMs: number; readonly isAwaited: boolean } | undefined;

  constructor(clock: Clock, onTick: () => void) {
    this.#clock = clock;
    this.#onTick = onTick;
  }

  /**
   * The next tick comes after so long at most; `undefined`: none is needed. `isAwaited`: somebody waits for what it does,
   * which keeps the process alive; idle models do not.
   */
  want(delayMs: number | undefined, isAwaited = false): void {
    const timer = this.#timer;
    if (delayMs === timer?.delayMs && isAwaited === (timer?.isAwaited ?? false)) return;
    // a tick that comes sooner than it must does no harm
    if (delayMs !== undefined && timer !== undefined && timer.delayMs < delayMs && timer.isAwaited === isAwaited)
      return;
    this.stop();
    if (delayMs === undefined) return;
    const handle = this.#clock.setTimeout(() => {
      this.#timer = undefined;
      this.#onTick();
    }, delayMs);
    if (!isAwaited && isReferenced(handle)) handle.unref();
    this.#timer = { handle, delayMs, isAwaited };
  }

  stop(): void {
    if (this.#timer !== undefined) this.#clock.clearTimeout(this.#timer.handle);
    this.#timer = undefined;
  }
}

function isReferenced(handle: unknown): handle is { unref(): void } {
  return typeof handle === "object" && handle !== null && "unref" in handle && typeof handle.unref === "function";
}
