import type { Clock } from "../api.js";
import type { ModelId } from "../model.js";
import type { ModelTable } from "../table/model-table.js";
import type { Calls } from "./calls.js";
import { hold, resolveId, type Target } from "./dispatch.js";
import type { Held } from "./protocol.js";

export interface ModelTargetContext {
  readonly table: ModelTable;
  readonly clock: Clock;
  readonly calls: Calls;
  /** Throws once the supervisor is closing or has ended. */
  readonly checkOpen: () => void;
}

/** A model by its id: whichever life of it is there, or comes. */
export class ModelTarget implements Target {
  readonly #context: ModelTargetContext;
  /** As the caller gave it until {@link ModelTarget.hold} has found out which is meant: a stream begins when it is read. */
  modelId: ModelId;

  constructor(id: ModelId, context: ModelTargetContext) {
    this.modelId = id;
    this.#context = context;
  }

  hold(waitForLoad: boolean | undefined): Held | undefined {
    const { table, clock, checkOpen } = this.#context;
    checkOpen();
    this.modelId = resolveId(table, this.modelId);
    return hold(table, this.modelId, clock.now(), waitForLoad);
  }

  wait(signal: AbortSignal): Promise<Held> {
    const { calls, clock } = this.#context;
    const id = this.modelId;
    return calls.callWithSignal<Held>(
      id,
      signal,
      (reply, ticket) => ({ type: "model.need", id, ticket, reply }),
      undefined,
      // a lease for somebody who has gone
      ({ live }) => live.block.release(clock.now()),
    );
  }
}
