/**
 * The way of a lease from the manager to the caller who waits for it. It takes some microtasks, in which the caller cannot be
 * told yet that the model is being taken away by force; so it is written down, and told when the caller has it.
 */
import type { Abortable, LiveModel } from "../table/live-model.js";

export class Handover implements Abortable {
  #aborted: { readonly reason: unknown } | undefined;

  abort(reason: unknown): void {
    this.#aborted ??= { reason };
  }

  /** Whoever has the lease now is told what has happened on the way. */
  end(live: LiveModel, holder: Abortable | undefined): void {
    live.requests.delete(this);
    if (this.#aborted !== undefined) holder?.abort(this.#aborted.reason);
  }
}

/** From now on a forced unload, a close or a crash ends this holder. */
export function takeOver(
  { live, handover }: { readonly live: LiveModel; readonly handover?: Handover },
  holder: Abortable,
): void {
  live.requests.add(holder);
  handover?.end(live, holder);
}
