import type { Backing, BackingExit } from "../backends/backend.js";
import { ControlBlock } from "./control-block.js";

/** A request or lease that can be cut off from outside: by a forced unload, a close or the end of its backing. */
export interface Abortable {
  abort(reason: unknown): void;
}

/** One incarnation while it lives: the backing, its control block, and who uses it. */
export class LiveModel {
  readonly backing: Backing;
  readonly block: ControlBlock;
  readonly requests = new Set<Abortable>();
  /** How the backing ended; never rejects, whatever the backing does. */
  readonly exited: Promise<BackingExit>;
  readonly #whenUnused = new Set<() => void>();

  constructor(backing: Backing) {
    this.backing = backing;
    this.exited = exitOf(backing);
    this.block = new ControlBlock(() => {
      for (const listener of this.#whenUnused) listener();
    });
  }

  /** Calls `listener` when the last lease comes back while admission is closed or watched. Returns the way to stop listening. */
  onUnused(listener: () => void): () => void {
    this.#whenUnused.add(listener);
    return () => this.#whenUnused.delete(listener);
  }

  /** Calls `listener` each time the model falls idle, while it takes requests. Returns the way to stop listening. */
  watchIdle(listener: () => void): () => void {
    const stop = this.onUnused(listener);
    this.block.watch(true);
    return () => {
      stop();
      this.block.watch(false);
    };
  }

  /** 0 once the backing cannot tell any more. */
  queued(): number {
    try {
      return this.backing.queued();
    } catch {
      return 0;
    }
  }

  abortRequests(reason: unknown): void {
    for (const request of [...this.requests]) request.abort(reason);
  }
}

/** A backing that breaks the rules of `exited` has gone down, as far as anybody can tell. */
async function exitOf(backing: Backing): Promise<BackingExit> {
  try {
    const exit: BackingExit | undefined = await backing.exited;
    if (exit?.reason === "disposed" || exit?.reason === "crashed") return exit;
    return { reason: "crashed", cause: new TypeError("the backing does not say how it ended") };
  } catch (cause) {
    return { reason: "crashed", cause };
  }
}
