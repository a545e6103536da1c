/**
 * The status table of the contract: one row and one event in, the next row and what is to be done out. Pure and total:
 * no clock, no effects, and it never throws. `README.md` beside this file shows the table.
 */
import type { ModelManagerEvents } from "../api.js";
import { AlreadyLoadedError, BackingCrashedError, LoadCancelledError, NotLoadedError } from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import type { UnloadReason } from "../model.js";
import type { Entry } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";
import type { LifecycleCommand, LifecycleEvent, LifecycleFact } from "./protocol.js";

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
  | { readonly do: "watch"; readonly live: LiveModel }
  /** Drains for `timeoutMs`, aborts what is left (with `force`) or gives up, then disposes. */
  | {
      readonly do: "start-unload";
      readonly incarnation: number;
      readonly live: LiveModel;
      readonly timeoutMs: number;
      readonly force: boolean;
    }
  /** A second, more urgent unload. */
  | { readonly do: "hasten-unload"; readonly incarnation: number; readonly timeoutMs: number }
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

/** `nextIncarnation` is used by an accepted load only. */
export function decide(row: Entry | undefined, event: LifecycleEvent, nextIncarnation: number): Decision {
  switch (event.type) {
    case "model.load":
      return decideLoad(row, event, nextIncarnation);
    case "model.unload":
      return decideUnload(row, event);
    case "load.abandoned":
      return row?.status === "loading" && row.incarnation === event.incarnation
        ? cancelLoad(row, "caller")
        : { row, actions: [] };
    default:
      return decideFact(row, event);
  }
}

function decideLoad(
  row: Entry | undefined,
  command: Extract<LifecycleCommand, { type: "model.load" }>,
  incarnation: number,
): Decision {
  const { id, source } = command;
  const wanted = source ?? row;
  if (wanted === undefined) return { row, actions: [{ do: "answer", error: new NotLoadedError(id) }] };
  if (row !== undefined && !mayLoad(row, source !== undefined)) {
    return { row, actions: [{ do: "answer", error: new AlreadyLoadedError(id, row.status) }] };
  }
  return {
    row: { ...blank(id, wanted.source, wanted.settings, row?.declared ?? false), status: "loading", incarnation },
    actions: [
      { do: "await", what: "load", incarnation },
      { do: "emit", notice: { name: "model:loading", payload: { modelId: id, incarnation } } },
      { do: "start-load" },
    ],
  };
}

/** A declared model keeps its own source; what is in error without being declared may be replaced. */
function mayLoad(row: Entry, withSource: boolean): boolean {
  const idle = row.status === "registered" || row.status === "error";
  return idle && !(withSource && row.declared);
}

function decideUnload(row: Entry | undefined, command: Extract<LifecycleCommand, { type: "model.unload" }>): Decision {
  const { id, timeoutMs, force, reason } = command;
  if (row === undefined) return { row, actions: [{ do: "answer", error: new NotLoadedError(id) }] };
  const { incarnation, live } = row;
  const forget = row.forget || command.forget;
  switch (row.status) {
    case "registered":
      return { row: forget ? undefined : row, actions: [{ do: "answer" }] };
    case "error":
      return {
        row: withoutLife({ ...row, forget }),
        actions: [row.disposing ? { do: "await", what: "unload", incarnation } : { do: "answer" }],
      };
    case "loading": {
      const cancelled = cancelLoad({ ...row, forget }, reason);
      return { row: cancelled.row, actions: [{ do: "await", what: "unload", incarnation }, ...cancelled.actions] };
    }
    case "unloading":
      return {
        row: forget === row.forget ? row : { ...row, forget },
        actions: [
          { do: "await", what: "unload", incarnation },
          ...(force ? [{ do: "hasten-unload", incarnation, timeoutMs } as const] : []),
        ],
      };
    case "ready":
      if (live === undefined) return { row: withoutLife({ ...row, forget }), actions: [{ do: "answer" }] };
      return {
        row: { ...row, status: "unloading", unloadReason: reason, forget },
        actions: [
          { do: "await", what: "unload", incarnation },
          emitUnload("model:unloading", row, reason),
          { do: "start-unload", incarnation, live, timeoutMs, force },
        ],
      };
  }
}

function decideFact(row: Entry | undefined, fact: LifecycleFact): Decision {
  const { incarnation } = fact;
  const isThisLife = row !== undefined && row.incarnation === incarnation;
  switch (fact.type) {
    case "load.done":
      if (!isThisLife || row.status !== "loading") {
        // cancelled meanwhile: it must not come back, and what it holds must not leak
        return { row, actions: [{ do: "start-unload", incarnation, live: fact.live, timeoutMs: 0, force: true }] };
      }
      return {
        row: { ...row, status: "ready", live: fact.live, loadedAt: fact.at },
        actions: [
          { do: "watch", live: fact.live },
          { do: "emit", notice: { name: "model:ready", payload: { modelId: row.id, incarnation } } },
          { do: "settle", what: "load", incarnation },
        ],
      };
    case "load.failed": {
      const settle = { do: "settle", what: "load", incarnation, error: fact.error } as const;
      if (!isThisLife || row.status !== "loading") return { row, actions: [settle] };
      const failed: Entry = { ...row, status: "error", error: fact.error };
      return { row: row.declared ? failed : undefined, actions: [emitError(row, fact.error), settle] };
    }
    case "unload.expired":
      return {
        row:
          isThisLife && row.status === "unloading"
            ? { ...row, status: "ready", unloadReason: undefined, forget: false }
            : row,
        actions: [{ do: "settle", what: "unload", incarnation, error: fact.error }],
      };
    case "dispose.failed":
      return {
        row: isThisLife ? { ...row, status: "error", error: fact.error, live: undefined, disposing: false } : row,
        actions: [
          ...(isThisLife ? [emitError(row, fact.error)] : []),
          { do: "settle", what: "unload", incarnation, error: fact.error },
        ],
      };
    case "memory.released": {
      const settle = { do: "settle", what: "unload", incarnation } as const;
      if (isThisLife && row.disposing) return { row: { ...row, disposing: false }, actions: [settle] };
      if (!isThisLife || row.status !== "unloading") return { row, actions: [settle] };
      return {
        row: withoutLife(row),
        actions: [emitUnload("model:unloaded", row, row.unloadReason ?? "caller"), settle],
      };
    }
    case "backing.down":
      return decideDown(row, fact, isThisLife);
  }
}

function decideDown(
  row: Entry | undefined,
  { id, incarnation, exit }: Extract<LifecycleFact, { type: "backing.down" }>,
  isThisLife: boolean,
): Decision {
  if (!isThisLife || row?.live === undefined) return { row, actions: [] };
  const isExpected = exit.reason === "disposed" && row.status === "unloading";
  if (isExpected) return { row, actions: [] };
  const { live } = row;
  const how = exit.reason === "crashed" ? exit : { cause: new Error("it was disposed by somebody else") };
  const error = new BackingCrashedError({ ...how, modelId: id, incarnation });
  const abort = { do: "abort-requests", live, error } as const;
  // an unload under way goes on to dispose what is left
  if (row.status !== "ready") return { row, actions: [abort] };
  return {
    row: { ...row, status: "error", error, live: undefined, disposing: true },
    actions: [abort, emitError(row, error), { do: "start-unload", incarnation, live, timeoutMs: 0, force: true }],
  };
}

function cancelLoad(row: Entry, reason: UnloadReason): Decision {
  const { id, incarnation } = row;
  return {
    row: withoutLife(row),
    actions: [
      { do: "abort-load", incarnation },
      emitUnload("model:unloaded", row, reason),
      { do: "settle", what: "load", incarnation, error: new LoadCancelledError(id) },
    ],
  };
}

function emitError(row: Entry, error: ModelSupervisorError): Action {
  return {
    do: "emit",
    notice: { name: "model:error", payload: { modelId: row.id, incarnation: row.incarnation, error } },
  };
}

function emitUnload(name: "model:unloading" | "model:unloaded", row: Entry, reason: UnloadReason): Action {
  return { do: "emit", notice: { name, payload: { modelId: row.id, incarnation: row.incarnation, reason } } };
}

/** What stays of a row when its life is over. */
function withoutLife(row: Entry): Entry | undefined {
  return row.declared && !row.forget
    ? { ...blank(row.id, row.source, row.settings, true), incarnation: row.incarnation }
    : undefined;
}

/** A declared row that was never loaded. */
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
    unloadReason: undefined,
    forget: false,
    disposing: false,
  };
}
