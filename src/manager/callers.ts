/** Who waits in the manager for what, and how each is answered: with a view, a lease, or that it is done. */
import { LoadCancelledError } from "../errors.js";
import type { ModelId, ModelInfo } from "../model.js";
import { infoOf } from "../table/entry.js";
import type { Entry } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import type { Awaited } from "./decision.js";
import { Handover } from "./handover.js";
import type { Held, Life, Reply } from "./protocol.js";
import type { LoadOrder } from "./tasks.js";
import { Waiters } from "./waiters.js";

/** Who gave a command, and what it wants to be told. */
export interface Caller {
  readonly info?: Reply<ModelInfo>;
  readonly done?: Reply<void>;
  readonly lease?: Reply<Held>;
  readonly ticket?: symbol;
  readonly makeDefault?: boolean;
  readonly onProgress?: LoadOrder["onProgress"];
}

export class Callers {
  readonly #table: ModelTable;
  readonly #now: () => number;
  /** By what they wait for. */
  readonly #waiting: Record<Awaited, Waiters<Caller>> = {
    check: new Waiters(),
    load: new Waiters(),
    unload: new Waiters(),
    next: new Waiters(),
  };

  constructor(table: ModelTable, now: () => number) {
    this.#table = table;
    this.#now = now;
  }

  add(what: Awaited, life: Life, caller: Caller): void {
    const { info, lease, done } = caller;
    if (info ?? lease ?? done) this.#waiting[what].add(life, caller, caller.ticket);
  }

  of(what: Awaited, life: Life): readonly Caller[] {
    return this.#waiting[what].of(life);
  }

  /** Whether a request waits for this load. */
  wantLease(life: Life): boolean {
    return this.of("load", life).some(({ lease }) => lease !== undefined);
  }

  /** Those who waited for what follows on one life wait for the load of another. */
  follow(from: Life, to: Life): void {
    this.#waiting.next.move(from, this.#waiting.load, to);
  }

  /** The lives that nobody waits for any more without the caller of this ticket. */
  withdraw(ticket: symbol): Life[] {
    return Object.values(this.#waiting).flatMap((waiters) => waiters.withdraw(ticket) ?? []);
  }

  /** Forgets those who have been answered already. */
  drop(what: Awaited, life: Life): void {
    this.#waiting[what].take(life);
  }

  /** Answers everyone who waits for that, in one step. */
  settle(what: Awaited, life: Life, error?: unknown): void {
    for (const caller of this.#waiting[what].take(life)) this.answer(life.id, caller, error);
  }

  /** As the row is now. Who wants a lease gets it here, so that nobody can take the model away before. */
  answer(id: ModelId, { info, lease, done }: Caller, error?: unknown): void {
    if (error !== undefined) return (info ?? lease ?? done)?.fail(error);
    done?.ok();
    const row = this.#table.get(id);
    if (lease) this.#giveLease(id, row, lease);
    if (info === undefined) return;
    if (row === undefined) info.fail(new LoadCancelledError(id));
    else info.ok(infoOf(row, this.#table.reservation(row.id, row.incarnation)));
  }

  #giveLease(id: ModelId, entry: Entry | undefined, reply: Reply<Held>): void {
    const live = entry?.live;
    if (entry === undefined || live === undefined || !live.block.acquire(this.#now()))
      return reply.fail(new LoadCancelledError(id));
    const handover = new Handover();
    live.requests.add(handover);
    reply.ok({ entry, live, handover });
  }
}
