import { InsufficientMemoryError, LoadCancelledError } from "../errors.js";
import type { MemoryBudget } from "../model.js";
import { incarnationKey } from "../table/model-table.js";
import type { ModelTable, TableWriter } from "../table/model-table.js";
import type { Notice } from "./decision.js";
import { checkFit, claimsAsOf, resolveBudget } from "./memory/budget.js";
import type { Life, LifecycleFact, ReserveRequest } from "./protocol.js";

export interface BookkeepingInput {
  readonly table: ModelTable;
  readonly writer: TableWriter;
  readonly budget: MemoryBudget;
  readonly notify: (notice: Notice) => void;
}

/** The books on memory, and on the lives that tasks work on. Runs inside the manager's mailbox only. */
export class Bookkeeping {
  readonly #input: BookkeepingInput;
  /** Lives that a task works on. */
  readonly #busy = new Map<string, Life>();
  /** Lives that an earlier manager left behind; the eager models wait for their memory. */
  readonly #orphans = new Set<string>();

  constructor(input: BookkeepingInput) {
    this.#input = input;
  }

  get isIdle(): boolean {
    return this.#busy.size === 0;
  }

  get hasOrphans(): boolean {
    return this.#orphans.size > 0;
  }

  busyLives(): Life[] {
    return [...this.#busy.values()];
  }

  /** A task begins to work on this life. */
  begin({ id, incarnation }: Life): void {
    this.#busy.set(incarnationKey(id, incarnation), { id, incarnation });
  }

  /** Lives that have claimed nothing hold nothing: nobody has to wait for them. */
  dropUnclaimed(): void {
    for (const [key, { id, incarnation }] of this.#busy) {
      if (this.#input.table.reservation(id, incarnation) === undefined) this.#busy.delete(key);
    }
  }

  beginOrphan(life: Life): void {
    this.#orphans.add(incarnationKey(life.id, life.incarnation));
    this.begin(life);
  }

  /** Check and claim in one step, so that of two loads racing for the last bytes exactly one gets them. */
  reserve({
    id,
    incarnation,
    model,
    profile,
    estimate,
    placement,
    shared,
    devices,
    asOf,
    reply,
  }: ReserveRequest): void {
    const { table, writer, budget, notify } = this.#input;
    const row = table.get(id);
    if (row === undefined || row.incarnation !== incarnation || row.status !== "loading") {
      reply.fail(new LoadCancelledError(id));
      return;
    }
    writer.setDevices(devices);
    const fit = checkFit({ placement, shared }, resolveBudget(budget, devices), claimsAsOf(table.reservations(), asOf));
    if (!fit.fits) {
      const { device, requiredBytes, availableBytes } = fit;
      notify({ name: "budget:refused", payload: { modelId: id, device, requiredBytes, availableBytes } });
      reply.fail(new InsufficientMemoryError({ modelId: id, device, requiredBytes, availableBytes }));
      return;
    }
    const { mappedBytes } = estimate;
    const number = table.measuredCount();
    writer.reserve({
      modelId: id,
      incarnation,
      placement,
      mappedBytes,
      shared,
      measured: false,
      number,
      live: undefined,
      stuck: false,
    });
    writer.put({ ...row, model, profile });
    reply.ok();
  }

  /** Enters a fact before the row is decided, so that whoever is answered then finds the books right. */
  enter(fact: LifecycleFact): void {
    const { table, writer } = this.#input;
    const { id, incarnation } = fact;
    if (fact.type === "load.failed" || fact.type === "backing.down") return;
    const key = incarnationKey(id, incarnation);
    this.#busy.delete(key);
    this.#orphans.delete(key);
    if (fact.type === "load.done") {
      const claim = table.reservation(id, incarnation);
      const number = table.measuredCount() + 1;
      if (claim) writer.reserve({ ...claim, ...fact.measured, measured: true, number, live: fact.live });
      writer.setDevices(fact.devices);
    }
    if (fact.type === "dispose.failed") {
      const claim = table.reservation(id, incarnation);
      if (claim) writer.reserve({ ...claim, stuck: true });
    }
    if (fact.type === "memory.released") {
      writer.unreserve(id, incarnation);
      if (fact.devices) writer.setDevices(fact.devices);
    }
  }
}
