/**
 * Every inference call of a backing passes through here, so that there is one place that knows what is in flight, can
 * abort it, and can tell when it has all settled: nothing native may be disposed before that.
 */
import { setMaxListeners } from "node:events";
import type { BackingRequest } from "../backend.js";

export class Intake {
  /** The calls in flight, each with what aborts it. */
  readonly #calls = new Map<AbortController, Promise<unknown>>();
  #closed: { readonly reason: unknown } | undefined;

  /** Runs one call. Its signal is aborted when the request's is, and when the intake closes. */
  run<Result>(request: BackingRequest, work: (signal: AbortSignal) => Promise<Result>): Promise<Result> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed.reason);
    if (request.signal.aborted) return Promise.reject(request.signal.reason);
    const controller = new AbortController();
    // One caller's signal may serve many requests; Node would warn of a leak from the eleventh on.
    setMaxListeners(0, request.signal);
    const forward = () => controller.abort(request.signal.reason);
    request.signal.addEventListener("abort", forward, { once: true });
    const result = work(controller.signal).finally(() => {
      request.signal.removeEventListener("abort", forward);
      this.#calls.delete(controller);
    });
    this.#calls.set(controller, result);
    return result;
  }

  /** Throws the reason once the intake is closed: for calls that take no time and are not counted. */
  check(): void {
    if (this.#closed !== undefined) throw this.#closed.reason;
  }

  /** Refuses new calls with `reason`, aborts those in flight with it, and resolves when they have settled. */
  async close(reason: unknown): Promise<void> {
    this.#closed ??= { reason };
    const running = [...this.#calls];
    for (const [controller] of running) controller.abort(reason);
    await Promise.allSettled(running.map(([, result]) => result));
  }
}
