/** Who waits until the models are there that are loaded from the start. */
import type { Entry } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import type { Reply } from "./protocol.js";

/** Loaded from the start. */
export function isEager({ declared, settings }: Entry): boolean {
  return declared && settings.residency.loadPolicy === "eager";
}

/** What has been loaded once is there, or was unloaded by somebody, or comes back with the next request. */
export function isSettled({ status, incarnation }: Entry): boolean {
  return incarnation > 0 && status !== "loading" && status !== "error";
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
    if (eager.some((row) => !isSettled(row) && row.status !== "error")) return;
    const failed = eager.filter((row) => row.status === "error");
    const causes = failed.map(({ id, error }) => `"${id}" (${error?.message ?? "unknown"})`).join(", ");
    const errors = failed.map((row) => row.error);
    if (failed.length > 0) return this.fail(new AggregateError(errors, `Declared models are not ready: ${causes}`));
    for (const reply of this.#waiting.values()) reply.ok();
    this.#waiting.clear();
  }
}
