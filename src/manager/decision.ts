/** What a decision consists of: the next row, and actions as data. Shared by the two halves of `decide`. */
import type { ModelManagerEvents } from "../api.js";
import type { ModelSupervisorError } from "../errors.js";
import type { UnloadReason } from "../model.js";
import type { Entry, Leaving } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";

/** What the executor does, in this order. */
export type Action =
  /** Answers the caller of this command. */
  | { readonly do: "answer"; readonly error?: ModelSupervisorError }
  /** Keeps the caller of this command until the load or unload of this life is settled. */
  | { readonly do: "await"; readonly what: "load" | "unload"; readonly incarnation: number }
  /** Answers everyone who waits for that. */
  | {
      readonly do: "settle";
      readonly what: "load" | "unload";
      readonly incarnation: number;
      readonly error?: ModelSupervisorError;
    }
  | { readonly do: "start-load" }
  | { readonly do: "abort-load"; readonly incarnation: number }
  | { readonly do: "watch"; readonly incarnation: number; readonly live: LiveModel }
  /** Drains for `timeoutMs`, aborts what is left (with `force`) or gives up, then disposes. */
  | ({ readonly do: "start-unload"; readonly incarnation: number; readonly live: LiveModel } & Omit<Leaving, "forget">)
  /** A second, more urgent unload. */
  | {
      readonly do: "hasten-unload";
      readonly incarnation: number;
      readonly timeoutMs: number;
      readonly reason: UnloadReason;
    }
  | { readonly do: "abort-requests"; readonly live: LiveModel; readonly error: ModelSupervisorError }
  | { readonly do: "emit"; readonly notice: Notice };

/** A typed event for listeners. */
export type Notice = {
  [Name in keyof ModelManagerEvents]: {
    readonly name: Name;
    readonly payload: Parameters<ModelManagerEvents[Name]>[0];
  };
}[keyof ModelManagerEvents];

export interface Decision {
  /** The next row; `undefined`: none. */
  readonly row: Entry | undefined;
  readonly actions: readonly Action[];
}

/** Fresh numbers: of the life that an accepted load begins, of the order that an unload is. */
export interface Numbers {
  readonly incarnation: number;
  readonly order: number;
}

/** A row that was never loaded. */
export function blank(id: string, source: string, settings: Entry["settings"], declared: boolean): Entry {
  return {
    id,
    status: "registered",
    source,
    settings,
    declared,
    incarnation: 0,
    model: undefined,
    profile: undefined,
    live: undefined,
    error: undefined,
    loadedAt: undefined,
    leaving: undefined,
    disposal: undefined,
  };
}

/** What stays of a row when its life is over: the declaration, unless that is to be forgotten as well. */
export function withoutLife(row: Entry, forget: boolean): Entry | undefined {
  if (!row.declared || forget) return undefined;
  return { ...blank(row.id, row.source, row.settings, true), incarnation: row.incarnation };
}

/** An unload that waits for nobody: for what nobody can use any more. */
export function atOnce(order: number): Omit<Leaving, "forget"> {
  return { order, reason: "caller", timeoutMs: 0, force: true };
}

export function emitReady({ id, incarnation }: Entry): Action {
  return { do: "emit", notice: { name: "model:ready", payload: { modelId: id, incarnation } } };
}

export function emitError({ id, incarnation }: Entry, error: ModelSupervisorError): Action {
  return { do: "emit", notice: { name: "model:error", payload: { modelId: id, incarnation, error } } };
}

export function emitUnload(
  name: "model:unloading" | "model:unloaded",
  { id, incarnation }: Entry,
  reason: UnloadReason,
): Action {
  return { do: "emit", notice: { name, payload: { modelId: id, incarnation, reason } } };
}
