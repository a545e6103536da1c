import type { Clock } from "../api.js";
import type { UnloadOrder } from "../manager/tasks.js";
import type { UnloadReason } from "../model.js";
import type { LiveModel } from "../table/live-model.js";

/** How a wait for the last lease ended. `stopped`: the task was stopped. */
export type DrainEnd = "unused" | "expired" | "stopped";

/** Waits until nobody uses a model whose admission is closed. Can be made more urgent at any time. */
export class Drain {
  readonly #live: LiveModel;
  readonly #clock: Clock;
  #forced: boolean;
  #reason: UnloadReason;
  /** The time at which requests in flight have had their time. */
  #endsAt: number;
  /** Set while {@link Drain.untilDeadline} waits. */
  #onHastened: (() => void) | undefined;

  constructor({ live, timeoutMs, force, reason }: Omit<UnloadOrder, "id" | "incarnation" | "order">, clock: Clock) {
    this.#live = live;
    this.#clock = clock;
    this.#forced = force;
    this.#reason = reason;
    this.#endsAt = clock.now() + timeoutMs;
  }

  /** Whether requests are to be aborted when the time is up. */
  get forced(): boolean {
    return this.#forced;
  }

  /** What aborted requests are told. */
  get reason(): string {
    return this.#reason === "close" ? "the supervisor is closing" : "the model is being unloaded by force";
  }

  /** A more urgent unload has come: abort requests, `timeoutMs` from now at the latest. */
  hasten(timeoutMs: number, reason: UnloadReason): void {
    this.#forced = true;
    this.#reason = reason;
    this.#endsAt = Math.min(this.#endsAt, this.#clock.now() + timeoutMs);
    this.#onHastened?.();
  }

  async untilDeadline(signal: AbortSignal): Promise<DrainEnd> {
    let timer: unknown;
    try {
      return await this.#wait(signal, (end) => {
        this.#onHastened = () => {
          this.#clock.clearTimeout(timer);
          const left = this.#endsAt - this.#clock.now();
          if (left <= 0) end("expired");
          else if (left < Infinity) timer = this.#clock.setTimeout(() => end("expired"), left);
        };
        this.#onHastened();
      });
    } finally {
      this.#clock.clearTimeout(timer);
      this.#onHastened = undefined;
    }
  }

  /** After an abort: the engine falls quiet when it does. Goes on when the task is stopped, for nobody else may come. */
  async untilUnused(): Promise<void> {
    await this.#wait(new AbortController().signal, () => undefined);
  }

  #wait(signal: AbortSignal, begin: (end: (how: DrainEnd) => void) => void): Promise<DrainEnd> {
    if (signal.aborted) return Promise.resolve("stopped");
    if (this.#live.block.leases === 0) return Promise.resolve("unused");
    return new Promise((resolve) => {
      const end = (how: DrainEnd) => {
        stopListening();
        signal.removeEventListener("abort", stop);
        resolve(how);
      };
      const stop = () => end("stopped");
      const stopListening = this.#live.onUnused(() => end("unused"));
      signal.addEventListener("abort", stop, { once: true });
      begin(end);
    });
  }
}
