/**
 * The status table of the contract: one row and one event in, the next row and what is to be done out. Pure and total:
 * no clock, no effects, and it never throws. `README.md` beside this file shows the table. Here are the commands of callers.
 */
import { AlreadyLoadedError, LoadCancelledError, NotLoadedError } from "../errors.js";
import type { UnloadReason } from "../model.js";
import type { Entry } from "../table/entry.js";
import { decideFact } from "./decide-fact.js";
import { blank, emitUnload, withoutLife } from "./decision.js";
import type { Decision, Numbers } from "./decision.js";
import type { LifecycleCommand, LifecycleEvent } from "./protocol.js";

type LoadCommand = Extract<LifecycleCommand, { type: "model.load" }>;
type UnloadCommand = Extract<LifecycleCommand, { type: "model.unload" }>;

export function decide(row: Entry | undefined, event: LifecycleEvent, numbers: Numbers): Decision {
  switch (event.type) {
    case "model.load":
      return decideLoad(row, event, numbers);
    case "model.unload":
      return decideUnload(row, event, numbers);
    case "load.abandoned":
      return row?.status === "loading" && row.incarnation === event.incarnation
        ? cancelLoad(row, "caller", false)
        : { row, actions: [] };
    default:
      return decideFact(row, event, numbers);
  }
}

function decideLoad(row: Entry | undefined, { id, source }: LoadCommand, { incarnation }: Numbers): Decision {
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

function decideUnload(row: Entry | undefined, command: UnloadCommand, { order }: Numbers): Decision {
  const { id, timeoutMs, force, forget, reason } = command;
  if (row === undefined) return { row, actions: [{ do: "answer", error: new NotLoadedError(id) }] };
  const { incarnation, live } = row;
  const wait = { do: "await", what: "unload", incarnation } as const;
  switch (row.status) {
    case "registered":
      return { row: forget ? undefined : row, actions: [{ do: "answer" }] };
    case "error":
      return decideUnloadOfError(row, forget);
    case "loading": {
      const cancelled = cancelLoad(row, reason, forget);
      return { row: cancelled.row, actions: [wait, ...cancelled.actions] };
    }
    case "unloading":
      return {
        // the row knows what was asked for, so that a task that has just given up is ordered again
        row: row.leaving
          ? {
              ...row,
              leaving: { ...row.leaving, forget: forget || row.leaving.forget, force: force || row.leaving.force },
            }
          : row,
        actions: [wait, ...(force ? [{ do: "hasten-unload", incarnation, timeoutMs, reason } as const] : [])],
      };
    case "ready": {
      if (live === undefined) return { row: withoutLife(row, forget), actions: [{ do: "answer" }] };
      const leaving = { order, reason, timeoutMs, force, forget };
      return {
        row: { ...row, status: "unloading", leaving },
        actions: [
          wait,
          emitUnload("model:unloading", row, reason),
          { do: "start-unload", incarnation, live, order, reason, timeoutMs, force },
        ],
      };
    }
  }
}

/** Resolves when the memory is free, like any unload; where it cannot be freed, the caller is told so again. */
function decideUnloadOfError(row: Entry, forget: boolean): Decision {
  const { incarnation, disposal, error } = row;
  if (disposal === "stuck" && error) return { row, actions: [{ do: "answer", error }] };
  return {
    row: withoutLife(row, forget),
    actions: [disposal === "running" ? { do: "await", what: "unload", incarnation } : { do: "answer" }],
  };
}

function cancelLoad(row: Entry, reason: UnloadReason, forget: boolean): Decision {
  const { id, incarnation } = row;
  return {
    row: withoutLife(row, forget),
    actions: [
      { do: "abort-load", incarnation },
      emitUnload("model:unloaded", row, reason),
      { do: "settle", what: "load", incarnation, error: new LoadCancelledError(id) },
    ],
  };
}
