/** Who waits until the models are there that are loaded from the start. */
import type { Entry } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import type { Reply } from "./protocol.js";

/** Loaded from the start. */
export function isEager({ declared, settings }: Entry): boolean {
  return declared && settings.residency.loadPolicy === "eager";
}

export class Readiness {
  /** By ticket. */
  readonly #waiting = new Map<symbol, Reply<void>>();

  add(ticket: symbol, reply: Reply<void>): void {
    this.#waiting.set(ticket, reply);
  }

  withdraw(ticket: symbol): void {
    this.#waiting.delete(ticket);
  }

  fail(error: unknown): void {
    for (const reply of this.#waiting.values()) reply.fail(error);
    this.#waiting.clear();
  }

  /** Once no eager model is loading any more. */
  answer(table: ModelTable): void {
    if (this.#waiting.size === 0) return;
    const eager = [...table.entries()].filter(isEager);
    if (eager.some((row) => row.status === "loading")) return;
    const failed = eager.filter((row) => row.status === "error");
    const names = failed.map((row) => `"${row.id}"`).join(", ");
    const errors = failed.map((row) => row.error);
    if (failed.length > 0) return this.fail(new AggregateError(errors, `Declared models are not ready: ${names}.`));
    for (const reply of this.#waiting.values()) reply.ok();
    this.#waiting.clear();
  }
}
