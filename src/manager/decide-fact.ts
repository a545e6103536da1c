/** The facts that come from tasks and watchers. A fact of an earlier life, or of an earlier order, changes nothing. Pure. */
import { BackingCrashedError, NotLoadedError, NotReadyError, isModelSupervisorError } from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import type { Entry } from "../table/entry.js";
import { afterFailure, waitMs } from "./backoff.js";
import {
  atOnce,
  beginLoad,
  cachedFailure,
  comesBack,
  emitError,
  emitReady,
  emitUnloaded,
  withoutLife,
  type Action,
  type Decision,
  type Numbers,
} from "./decision.js";
import type { LifecycleFact } from "./protocol.js";

type Fact<Type extends LifecycleFact["type"]> = Extract<LifecycleFact, { type: Type }>;

/** A life that lasted so long counts as a success, however it ended. */
const STABLE_MS = 60_000;

export function decideFact(row: Entry | undefined, fact: LifecycleFact, numbers: Numbers): Decision {
  const current = row?.incarnation === fact.incarnation ? row : undefined;
  switch (fact.type) {
    case "check.done":
      return decideChecked(row, current, fact);
    case "check.failed":
      return decideCheckFailed(row, current, fact);
    case "load.done":
      return decideDone(row, current, fact, numbers);
    case "load.failed":
      return decideFailed(row, current, fact, numbers);
    case "unload.expired":
      return decideExpired(row, current, fact, numbers);
    case "dispose.failed":
      return decideStuck(row, current, fact);
    case "memory.released":
      return decideReleased(row, current, fact, numbers);
    case "backing.down":
      return current?.live === undefined ? { row, actions: [] } : decideDown(current, fact, numbers);
  }
}

function decideChecked(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, model, profile }: Fact<"check.done">,
): Decision {
  const settle = { do: "settle", what: "check", incarnation } as const;
  // a request may have begun to load it meanwhile: that finds out the same by itself
  if (current?.status !== "registered") return { row, actions: [settle] };
  return { row: { ...current, model, profile }, actions: [settle] };
}

function decideCheckFailed(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, error }: Fact<"check.failed">,
): Decision {
  const settle = { do: "settle", what: "check", incarnation, error } as const;
  if (current?.status !== "registered") return { row, actions: [settle] };
  return { row: { ...current, status: "error", error }, actions: [emitError(current, error), settle] };
}

function decideDone(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, live, at }: Fact<"load.done">,
  { order }: Numbers,
): Decision {
  if (current?.status !== "loading") {
    // cancelled meanwhile: it must not come back, and what it holds must not leak
    return { row, actions: [{ do: "start-unload", incarnation, live, ...atOnce(order) }] };
  }
  return {
    row: { ...current, status: "ready", live, loadedAt: at },
    // first the callers: one who leaves while listeners are told has a loaded model, and no load to cancel
    actions: [
      { do: "watch", incarnation, live },
      { do: "settle", what: "load", incarnation },
      emitReady(current, at, current.load?.at),
    ],
  };
}

function decideFailed(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, error }: Fact<"load.failed">,
  { now, chance }: Numbers,
): Decision {
  const settle = { do: "settle", what: "load", incarnation, error } as const;
  if (current?.status !== "loading") return { row, actions: [settle] };
  // that the plan found no room says nothing about the model: the next request looks again; that the engine found none, does
  const wasRefused = isModelSupervisorError(error, "insufficient_memory") && error.cause === undefined;
  const failures = wasRefused ? current.failures : afterFailure(current.failures, now, chance);
  return {
    row: current.declared ? { ...current, status: "error", error, failures } : undefined,
    actions: [emitError(current, error), settle],
  };
}

/** Requests outlasted the time. Somebody may have asked for force since the task gave up. */
function decideExpired(
  row: Entry | undefined,
  current: Entry | undefined,
  fact: Fact<"unload.expired">,
  { order, now }: Numbers,
): Decision {
  const { incarnation } = fact;
  const leaving = current?.leaving;
  if (current?.live === undefined || leaving?.order !== fact.order) return { row, actions: [] };
  if (leaving.force) {
    const { live } = current;
    const { reason } = leaving;
    return {
      row: { ...current, leaving: { ...leaving, order, timeoutMs: 0 } },
      actions: [{ do: "start-unload", incarnation, live, order, reason, timeoutMs: 0, force: true }],
    };
  }
  return {
    row: { ...current, status: "ready", leaving: undefined, wanted: undefined },
    actions: [
      ...settleNext(current),
      emitReady(current, now),
      { do: "settle", what: "unload", incarnation, error: fact.error },
    ],
  };
}

function decideStuck(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, error }: Fact<"dispose.failed">,
): Decision {
  const settle = { do: "settle", what: "unload", incarnation, error } as const;
  if (current === undefined) return { row, actions: [settle] };
  return {
    // why a model is in error at all says more than that it could not be disposed either
    row: {
      ...current,
      status: "error",
      error: current.error ?? error,
      live: undefined,
      leaving: undefined,
      disposal: "stuck",
      // once it has ended all the same
      onDemand: current.leaving === undefined ? current.onDemand : comesBack(current),
      wanted: undefined,
    },
    actions: [emitError(current, error), ...settleNext(current, new NotReadyError(current.id, "error", error)), settle],
  };
}

function decideReleased(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation }: Fact<"memory.released">,
  numbers: Numbers,
): Decision {
  const settle = { do: "settle", what: "unload", incarnation } as const;
  if (current?.status === "error" || current?.status === "registered")
    return next({ ...current, disposal: undefined }, current, [settle], numbers);
  if (current?.leaving === undefined) return { row, actions: [settle] };
  const { reason, forget } = current.leaving;
  const actions = [emitUnloaded(current, reason), settle];
  return next(withoutLife(current, forget, reason), current, actions, numbers);
}

/** Its memory is free: the life begins that somebody waits for. */
function next(row: Entry | undefined, before: Entry, actions: readonly Action[], numbers: Numbers): Decision {
  if (!before.wanted) return { row, actions };
  const { id, incarnation, error } = before;
  const idle = row && { ...row, wanted: undefined };
  const refuse = (reason: ModelSupervisorError): Decision => ({
    row: idle,
    actions: [...actions, ...settleNext(before, reason)],
  });
  if (idle === undefined) return refuse(new NotLoadedError(id));
  if (before.wanted === "request") {
    if (!idle.onDemand) return refuse(new NotReadyError(id, idle.status, error));
    const retryAfterMs = waitMs(idle.failures, numbers.now);
    if (retryAfterMs > 0) return refuse(cachedFailure(idle, retryAfterMs));
  }
  const begun = beginLoad(idle, before.wanted, numbers);
  return {
    row: begun.row,
    actions: [...actions, { do: "follow", from: incarnation, to: numbers.incarnation }, ...begun.actions],
  };
}

/** Without an error: the model is ready, and those who waited for its next life get this one. */
function settleNext({ wanted, incarnation }: Entry, error?: ModelSupervisorError): Action[] {
  if (!wanted) return [];
  return [{ do: "settle", what: "next", incarnation, ...(error && { error }) }];
}

function decideDown(row: Entry, { id, incarnation, exit }: Fact<"backing.down">, numbers: Numbers): Decision {
  const { live } = row;
  const isExpected = exit.reason === "disposed" && row.status === "unloading";
  if (isExpected || live === undefined) return { row, actions: [] };
  const how = exit.reason === "crashed" ? exit : { cause: new Error("it was disposed by somebody else") };
  const error = new BackingCrashedError({ ...how, modelId: id, incarnation });
  const abort = { do: "abort-requests", live, error } as const;
  if (row.leaving) {
    // nobody can use it any more, so the unload need not wait, and must not make it ready again
    const { reason } = row.leaving;
    return {
      row: { ...row, leaving: { ...row.leaving, force: true } },
      actions: [abort, { do: "hasten-unload", incarnation, timeoutMs: 0, reason }],
    };
  }
  const { now, chance, order } = numbers;
  const before = now - (row.loadedAt ?? now) >= STABLE_MS ? undefined : row.failures;
  const failures = afterFailure(before, now, chance);
  return {
    row: { ...row, status: "error", error, failures, live: undefined, disposal: "running" },
    actions: [abort, emitError(row, error), { do: "start-unload", incarnation, live, ...atOnce(order) }],
  };
}
