import type { Clock } from "../api.js";

/** One timer for all models, which keeps no process alive and runs only while there is something to look at. */
export class Sweeper {
  readonly #clock: Clock;
  readonly #onTick: () => void;
  #timer: { readonly handle: unknown; readonly delayMs: number } | undefined;

  constructor(clock: Clock, onTick: () => void) {
    this.#clock = clock;
    this.#onTick = onTick;
  }

  /** The next tick comes after so long at most; `undefined`: none is needed. */
  want(delayMs: number | undefined): void {
    if (delayMs === this.#timer?.delayMs) return;
    // a tick that comes sooner than it must does no harm
    if (delayMs !== undefined && this.#timer !== undefined && this.#timer.delayMs < delayMs) return;
    this.stop();
    if (delayMs === undefined) return;
    const handle = this.#clock.setTimeout(() => {
      this.#timer = undefined;
      this.#onTick();
    }, delayMs);
    if (isReferenced(handle)) handle.unref();
    this.#timer = { handle, delayMs };
  }

  stop(): void {
    if (this.#timer !== undefined) this.#clock.clearTimeout(this.#timer.handle);
    this.#timer = undefined;
  }
}

function isReferenced(handle: unknown): handle is { unref(): void } {
  return typeof handle === "object" && handle !== null && "unref" in handle && typeof handle.unref === "function";
}
