/** What a decision consists of: the next row, and actions as data. Shared by the halves of `decide`. */
import type { ModelManagerEvents } from "../api.js";
import { LoadFailedError, isModelSupervisorError } from "../errors.js";
import type { LoadPhase, ModelSupervisorError } from "../errors.js";
import type { LoadTrigger, UnloadReason } from "../model.js";
import type { Entry, Leaving } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";

/** What callers wait for: the check of a file, a load, an unload, or the life that follows on this one. */
export type Awaited = "check" | "load" | "unload" | "next";

/** What the executor does, in this order. */
export type Action =
  /** Answers the caller of this command: with an error, or with what it wants, as the row is then. */
  | { readonly do: "answer"; readonly error?: ModelSupervisorError }
  /** Keeps the caller of this command until that of this life is settled. */
  | { readonly do: "await"; readonly what: Awaited; readonly incarnation: number }
  /** Answers everyone who waits for that. Those who want a lease get it now, before anybody can take the model away. */
  | {
      readonly do: "settle";
      readonly what: Awaited;
      readonly incarnation: number;
      readonly error?: ModelSupervisorError;
    }
  /** Those who waited for the life that follows on the first now wait for the load of the second. */
  | { readonly do: "follow"; readonly from: number; readonly to: number }
  | { readonly do: "start-check" }
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

/** What a decision may need besides the row and the event. */
export interface Numbers {
  /** Of the life that an accepted load or declaration begins. */
  readonly incarnation: number;
  /** Of the order that an unload is. */
  readonly order: number;
  /** Milliseconds since the epoch. */
  readonly now: number;
  /** At least 0, below 1. */
  readonly chance: number;
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
    onDemand: declared && settings.residency.loadPolicy === "lazy",
    wanted: undefined,
    failures: undefined,
    load: undefined,
    loadedAt: undefined,
    leaving: undefined,
    disposal: undefined,
  };
}

/**
 * What stays of a row when its life is over: the declaration, unless that is to be forgotten as well. Nobody asked for a
 * model to be gone that went by its TTL or to make room, so that the next request brings it back, lazy or not.
 */
export function withoutLife(row: Entry, forget: boolean, reason: UnloadReason): Entry | undefined {
  if (!row.declared || forget) return undefined;
  const { id, source, settings, incarnation, model, profile } = row;
  const declared = blank(id, source, settings, true);
  const onDemand = declared.onDemand || reason === "ttl" || reason === "eviction";
  return { ...declared, incarnation, model, profile, onDemand };
}

/** Whether a request may load the model again when its unload has ended. */
export function comesBack(row: Entry): boolean {
  const { leaving } = row;
  return leaving !== undefined && (withoutLife(row, leaving.forget, leaving.reason)?.onDemand ?? false);
}

/** A new life, of which is known what was found out in the last. What a request begins keeps the failures in mind; what somebody asks for by hand starts afresh. */
export function beginLoad(
  { id, source, settings, declared, onDemand, failures, model, profile }: Entry,
  trigger: LoadTrigger,
  { incarnation, now }: Numbers,
): Decision {
  return {
    row: {
      ...blank(id, source, settings, declared),
      status: "loading",
      incarnation,
      model,
      profile,
      onDemand,
      failures: trigger === "request" ? failures : undefined,
      load: { trigger, at: now },
    },
    actions: [
      { do: "emit", notice: { name: "model:loading", payload: { modelId: id, incarnation, trigger } } },
      { do: "start-load" },
    ],
  };
}

/** An earlier failure, told to who comes before it may be tried again. */
export function cachedFailure({ id, error }: Entry, retryAfterMs: number): LoadFailedError {
  const phase = isModelSupervisorError(error, "load_failed") ? error.phase : phaseOf(error?.code);
  return new LoadFailedError(id, phase, error, retryAfterMs);
}

/** Where a load ends with errors of this code. */
function phaseOf(code: string | undefined): LoadPhase {
  if (code === "invalid_model_file" || code === "source_unavailable" || code === "storage_full") return "resolve";
  return code === "estimate_failed" ? "estimate" : "start";
}

/** An unload that waits for nobody: for what nobody can use any more. */
export function atOnce(order: number): Omit<Leaving, "forget"> {
  return { order, reason: "caller", timeoutMs: 0, force: true };
}

/** `since`: when its load was ordered; absent where it was ready before. */
export function emitReady({ id, incarnation }: Entry, now: number, since?: number): Action {
  const loadMs = since === undefined ? {} : { loadMs: now - since };
  return { do: "emit", notice: { name: "model:ready", payload: { modelId: id, incarnation, ...loadMs } } };
}

export function emitError({ id, incarnation }: Entry, error: ModelSupervisorError): Action {
  return { do: "emit", notice: { name: "model:error", payload: { modelId: id, incarnation, error } } };
}

export function emitUnloading({ id, incarnation, live, loadedAt }: Entry, reason: UnloadReason, now: number): Action {
  const idleMs = Math.max(0, now - (live?.block.lastUsedAt ?? loadedAt ?? now));
  return { do: "emit", notice: { name: "model:unloading", payload: { modelId: id, incarnation, reason, idleMs } } };
}

export function emitUnloaded({ id, incarnation }: Entry, reason: UnloadReason): Action {
  return { do: "emit", notice: { name: "model:unloaded", payload: { modelId: id, incarnation, reason } } };
}
