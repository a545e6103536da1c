/** The facts that come from tasks and watchers. A fact of an earlier life, or of an earlier order, changes nothing. Pure. */
import { BackingCrashedError } from "../errors.js";
import type { Entry } from "../table/entry.js";
import { atOnce, emitError, emitReady, emitUnload, withoutLife } from "./decision.js";
import type { Decision, Numbers } from "./decision.js";
import type { LifecycleFact } from "./protocol.js";

type Fact<Type extends LifecycleFact["type"]> = Extract<LifecycleFact, { type: Type }>;

export function decideFact(row: Entry | undefined, fact: LifecycleFact, { order }: Numbers): Decision {
  const current = row?.incarnation === fact.incarnation ? row : undefined;
  switch (fact.type) {
    case "load.done":
      return decideDone(row, current, fact, order);
    case "load.failed":
      return decideFailed(row, current, fact);
    case "unload.expired":
      return decideExpired(row, current, fact, order);
    case "dispose.failed":
      return decideStuck(row, current, fact);
    case "memory.released":
      return decideReleased(row, current, fact);
    case "backing.down":
      return current?.live === undefined ? { row, actions: [] } : decideDown(current, fact, order);
  }
}

function decideDone(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, live, at }: Fact<"load.done">,
  order: number,
): Decision {
  if (current?.status !== "loading") {
    // cancelled meanwhile: it must not come back, and what it holds must not leak
    return { row, actions: [{ do: "start-unload", incarnation, live, ...atOnce(order) }] };
  }
  return {
    row: { ...current, status: "ready", live, loadedAt: at },
    // first the callers: one who leaves while listeners are told has a loaded model, and no load to cancel
    actions: [{ do: "watch", incarnation, live }, { do: "settle", what: "load", incarnation }, emitReady(current)],
  };
}

function decideFailed(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation, error }: Fact<"load.failed">,
): Decision {
  const settle = { do: "settle", what: "load", incarnation, error } as const;
  if (current?.status !== "loading") return { row, actions: [settle] };
  return {
    row: current.declared ? { ...current, status: "error", error } : undefined,
    actions: [emitError(current, error), settle],
  };
}

/** Requests outlasted the time. Somebody may have asked for force since the task gave up. */
function decideExpired(
  row: Entry | undefined,
  current: Entry | undefined,
  fact: Fact<"unload.expired">,
  order: number,
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
    row: { ...current, status: "ready", leaving: undefined },
    actions: [emitReady(current), { do: "settle", what: "unload", incarnation, error: fact.error }],
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
    },
    actions: [emitError(current, error), settle],
  };
}

function decideReleased(
  row: Entry | undefined,
  current: Entry | undefined,
  { incarnation }: Fact<"memory.released">,
): Decision {
  const settle = { do: "settle", what: "unload", incarnation } as const;
  if (current?.status === "error") return { row: { ...current, disposal: undefined }, actions: [settle] };
  if (current?.leaving === undefined) return { row, actions: [settle] };
  const { reason, forget } = current.leaving;
  return {
    row: withoutLife(current, forget),
    actions: [emitUnload("model:unloaded", current, reason), settle],
  };
}

function decideDown(row: Entry, { id, incarnation, exit }: Fact<"backing.down">, order: number): Decision {
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
  return {
    row: { ...row, status: "error", error, live: undefined, disposal: "running" },
    actions: [abort, emitError(row, error), { do: "start-unload", incarnation, live, ...atOnce(order) }],
  };
}
