import { incarnationKey } from "../table/model-table.js";
import type { ModelTable, TableWriter } from "../table/model-table.js";
import type { Life, LifecycleFact } from "./protocol.js";

export interface BookkeepingInput {
  readonly table: ModelTable;
  readonly writer: TableWriter;
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

  /** Enters a fact before the row is decided, so that whoever is answered then finds the books right. */
  enter(fact: LifecycleFact): void {
    const { table, writer } = this.#input;
    const { id, incarnation } = fact;
    if (fact.type === "load.failed" || fact.type === "backing.down") return;
    const key = incarnationKey(id, incarnation);
    this.#busy.delete(key);
    this.#orphans.delete(key);
    const claim = table.reservation(id, incarnation);
    switch (fact.type) {
      case "load.done": {
        const { devices, asOf } = fact.seen;
        const before = table.measuredCount();
        if (claim) writer.reserve({ ...claim, ...fact.measured, measured: true, number: before + 1, live: fact.live });
        // what was seen as free is without this model, and without any that was measured before it was looked at
        writer.setDevices(devices, asOf === before ? table.measuredCount() : asOf);
        break;
      }
      case "dispose.failed":
        if (claim) writer.reserve({ ...claim, stuck: true });
        break;
      case "memory.released":
        writer.unreserve(id, incarnation);
        if (fact.seen) writer.setDevices(fact.seen.devices, fact.seen.asOf);
        break;
      default:
        break; // the others say nothing about memory
    }
  }
}
