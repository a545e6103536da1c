import type { Clock } from "../api.js";
import type { LiveModel } from "../table/live-model.js";

/** How a wait for the last lease ended. `stopped`: the task was stopped. */
export type DrainEnd = "unused" | "expired" | "stopped";

/** Waits until nobody uses a model whose admission is closed. */
export class Drain {
  readonly #live: LiveModel;
  readonly #clock: Clock;
  #forced: boolean;
  /** Set while a wait is under way: sets its end to an earlier time. */
  #shorten: ((timeoutMs: number) => void) | undefined;

  constructor(live: LiveModel, clock: Clock, forced: boolean) {
    this.#live = live;
    this.#clock = clock;
    this.#forced = forced;
  }

  /** Whether requests are to be aborted when the time is up. */
  get forced(): boolean {
    return this.#forced;
  }

  wait(timeoutMs: number, signal: AbortSignal): Promise<DrainEnd> {
    const clock = this.#clock;
    return new Promise((resolve) => {
      let endsAt = Infinity;
      let timer: unknown;
      const end = (how: DrainEnd) => {
        this.#shorten = undefined;
        clock.clearTimeout(timer);
        stopListening();
        signal.removeEventListener("abort", stop);
        resolve(how);
      };
      const stop = () => end("stopped");
      const stopListening = this.#live.onUnused(() => end("unused"));
      signal.addEventListener("abort", stop, { once: true });
      this.#shorten = (ms) => {
        if (clock.now() + ms >= endsAt) return;
        clock.clearTimeout(timer);
        endsAt = clock.now() + ms;
        timer = clock.setTimeout(() => end("expired"), ms);
      };
      if (signal.aborted) stop();
      else if (this.#live.block.leases === 0) end("unused");
      else if (timeoutMs <= 0) end("expired");
      else if (timeoutMs < Infinity) this.#shorten(timeoutMs);
    });
  }

  /** A more urgent unload has come: abort requests, `timeoutMs` from now at the latest. */
  hasten(timeoutMs: number): void {
    this.#forced = true;
    this.#shorten?.(timeoutMs);
  }
}
