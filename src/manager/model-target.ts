import { DEFAULT_MODEL } from "../api.js";
import type { Clock } from "../api.js";
import { NoDefaultModelError, NotLoadedError, NotReadyError } from "../errors.js";
import type { ModelId } from "../model.js";
import type { Entry } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import type { Calls } from "./calls.js";
import type { Target } from "./dispatch.js";
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
      // a lease for somebody who has gone
      ({ live, handover }) => {
        handover?.end(live, undefined);
        live.block.release(clock.now());
      },
    );
  }
}

/** Resolves the id and takes a lease; `undefined` where the manager may have one later. */
export function hold(table: ModelTable, modelId: ModelId, now: number, waitForLoad = true): Held | undefined {
  const entry = table.get(modelId);
  if (entry === undefined) throw new NotLoadedError(modelId);
  const { live } = entry;
  if (live !== undefined && live.block.acquire(now)) return { entry, live };
  if (waitForLoad && mayCome(entry)) return undefined;
  throw new NotReadyError(modelId, entry.status, entry.error);
}

/** Whether the manager is worth asking: it decides. */
function mayCome({ status, declared, onDemand }: Entry): boolean {
  return status === "loading" || onDemand || (declared && status === "unloading");
}

/** The id that a call is for. */
function resolveId(table: ModelTable, id: ModelId): ModelId {
  if (id !== DEFAULT_MODEL) return id;
  const modelId = table.defaultId();
  if (modelId === undefined) throw new NoDefaultModelError();
  return modelId;
}
