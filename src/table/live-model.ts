import type { Backing } from "../backends/backend.js";
import { ControlBlock } from "./control-block.js";

/** A request that can be cut off from outside: by a forced unload, a close or the end of its backing. */
export interface Abortable {
  abort(reason: unknown): void;
}

/** One incarnation while it lives: the backing, its control block, and the requests that run on it. */
export class LiveModel {
  readonly backing: Backing;
  readonly block: ControlBlock;
  readonly requests = new Set<Abortable>();
  readonly #whenUnused = new Set<() => void>();

  constructor(backing: Backing) {
    this.backing = backing;
    this.block = new ControlBlock(() => {
      for (const listener of this.#whenUnused) listener();
    });
  }

  /** Calls `listener` when the last lease comes back after admission was closed. Returns the way to stop listening. */
  onUnused(listener: () => void): () => void {
    this.#whenUnused.add(listener);
    return () => this.#whenUnused.delete(listener);
  }

  abortRequests(reason: unknown): void {
    for (const request of [...this.requests]) request.abort(reason);
  }
}
