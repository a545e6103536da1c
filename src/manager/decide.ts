/**
 * The status table of the contract: one row and one event in, the next row and what is to be done out. Pure and total:
 * no clock, no effects, and it never throws. `README.md` beside this file shows the table. Here are the commands of callers.
 */
import { AlreadyLoadedError, LoadCancelledError, NotLoadedError, NotReadyError } from "../errors.js";
import type { UnloadReason } from "../model.js";
import type { Entry, Leaving } from "../table/entry.js";
import { waitMs } from "./backoff.js";
import { decideFact } from "./decide-fact.js";
import { beginLoad, blank, cachedFailure, comesBack, emitUnloaded, emitUnloading, withoutLife } from "./decision.js";
import type { Action, Decision, Numbers } from "./decision.js";
import type { LifecycleCommand, LifecycleEvent } from "./protocol.js";

type Command<Type extends LifecycleCommand["type"]> = Extract<LifecycleCommand, { type: Type }>;

export function decide(row: Entry | undefined, event: LifecycleEvent, numbers: Numbers): Decision {
  switch (event.type) {
    case "model.register":
      return decideRegister(row, event, numbers);
    case "model.load":
      return decideLoad(row, event, numbers);
    case "model.need":
      return decideNeed(row, event, numbers);
    case "model.unload":
      return decideUnload(row, event, numbers);
    case "load.abandoned":
      return decideAbandoned(row, event);
    default:
      return decideFact(row, event, numbers);
  }
}

/** A declaration that turned out to be no good may be replaced, once nothing of it is left. */
function decideRegister(
  row: Entry | undefined,
  { id, source, settings }: Command<"model.register">,
  { incarnation }: Numbers,
): Decision {
  if (row !== undefined && !(row.status === "error" && row.declared && row.disposal === undefined))
    return answer(row, new AlreadyLoadedError(id, row.status));
  return {
    row: { ...blank(id, source, settings, true), incarnation },
    actions: [
      { do: "await", what: "check", incarnation },
      { do: "emit", notice: { name: "model:registered", payload: { modelId: id } } },
      { do: "start-check" },
    ],
  };
}

function decideLoad(row: Entry | undefined, command: Command<"model.load">, numbers: Numbers): Decision {
  const { id, source, trigger } = command;
  const subject = source ? blank(id, source.source, source.settings, row?.declared ?? false) : row;
  if (subject === undefined) return answer(row, new NotLoadedError(id));
  if (row !== undefined && !mayLoad(row, source !== undefined))
    return answer(row, new AlreadyLoadedError(id, row.status));
  // two lives of one model would need its memory twice
  if (row?.disposal === "running")
    return awaitNext({ ...row, source: subject.source, settings: subject.settings }, "call");
  return withCaller(beginLoad(subject, trigger, numbers), numbers);
}

/** A declared model keeps its own source; what is in error without being declared may be replaced. */
function mayLoad(row: Entry, withSource: boolean): boolean {
  const idle = row.status === "registered" || row.status === "error";
  return idle && !(withSource && row.declared);
}

function withCaller({ row, actions }: Decision, { incarnation }: Numbers): Decision {
  return { row, actions: [{ do: "await", what: "load", incarnation }, ...actions] };
}

/** A request needs the model: it joins a load, begins one, waits for the end of an unload, or cannot be helped. */
function decideNeed(row: Entry | undefined, { id }: Command<"model.need">, numbers: Numbers): Decision {
  if (row === undefined) return answer(row, new NotLoadedError(id));
  switch (row.status) {
    case "ready":
      return answer(row);
    case "loading":
      return { row, actions: [{ do: "await", what: "load", incarnation: row.incarnation }] };
    case "unloading":
      return comesBack(row) ? awaitNext(row, "request") : answer(row, new NotReadyError(id, row.status));
    case "registered":
      return row.onDemand ? loadOnDemand(row, numbers) : answer(row, new NotReadyError(id, row.status));
    case "error": {
      if (!row.onDemand || row.disposal === "stuck") return answer(row, new NotReadyError(id, row.status, row.error));
      const retryAfterMs = waitMs(row.failures, numbers.now);
      return retryAfterMs > 0 ? answer(row, cachedFailure(row, retryAfterMs)) : loadOnDemand(row, numbers);
    }
  }
}

/** Now, or when the memory of the last life is free. */
function loadOnDemand(row: Entry, numbers: Numbers): Decision {
  if (row.disposal === "running") return awaitNext(row, "request");
  return withCaller(beginLoad(row, "request", numbers), numbers);
}

function awaitNext(row: Entry, by: "request" | "call"): Decision {
  return {
    row: { ...row, wanted: row.wanted === "call" ? "call" : by },
    actions: [{ do: "await", what: "next", incarnation: row.incarnation }],
  };
}

/** A load that was begun for somebody is nobody's now; an eager one goes on. */
function decideAbandoned(row: Entry | undefined, { incarnation }: Command<"load.abandoned">): Decision {
  if (row?.incarnation !== incarnation) return { row, actions: [] };
  if (row.status === "loading" && row.load?.trigger !== "eager") {
    const cancelled = cancelLoad(row, "caller", false);
    // nobody asked for the model to be gone: the next request brings it back as it would have before
    return { ...cancelled, row: cancelled.row && { ...cancelled.row, onDemand: row.onDemand } };
  }
  return { row: row.wanted ? { ...row, wanted: undefined } : row, actions: [] };
}

function decideUnload(row: Entry | undefined, command: Command<"model.unload">, { order, now }: Numbers): Decision {
  const { id, timeoutMs, force, forget, reason } = command;
  if (row === undefined) return answer(row, new NotLoadedError(id));
  const { incarnation, live } = row;
  const wait = { do: "await", what: "unload", incarnation } as const;
  switch (row.status) {
    case "registered": {
      // what went by itself would come back; what somebody unloads stays away
      const { onDemand } = blank(id, row.source, row.settings, row.declared);
      const idle = { ...row, wanted: undefined, onDemand };
      const checks = forget
        ? [{ do: "settle", what: "check", incarnation, error: new LoadCancelledError(id) } as const]
        : [];
      return { row: forget ? undefined : idle, actions: [...cancelNext(row), answerWhenFree(row), ...checks] };
    }
    case "error": {
      if (row.disposal === "stuck" && row.error) return answer(row, row.error);
      const left = withoutLife(row, forget, "caller");
      return {
        row: left && { ...left, disposal: row.disposal },
        actions: [...cancelNext(row), answerWhenFree(row)],
      };
    }
    case "loading": {
      const cancelled = cancelLoad(row, reason, forget);
      return { row: cancelled.row, actions: [wait, ...cancelled.actions] };
    }
    case "unloading":
      return {
        // the row knows what was asked for, so that a task that has just given up is ordered again
        row: row.leaving ? { ...row, leaving: joined(row.leaving, command) } : row,
        actions: [wait, ...(force ? [{ do: "hasten-unload", incarnation, timeoutMs, reason } as const] : [])],
      };
    case "ready": {
      if (live === undefined) return answer(withoutLife(row, forget, reason));
      const leaving = { order, reason, timeoutMs, force, forget };
      return {
        row: { ...row, status: "unloading", leaving },
        actions: [
          wait,
          emitUnloading(row, reason, now),
          { do: "start-unload", incarnation, live, order, reason, timeoutMs, force },
        ],
      };
    }
  }
}

/** What two unloads of one life ask for together. What goes by itself would come back; what somebody unloads stays away. */
function joined(first: Leaving, { reason, force, forget }: Command<"model.unload">): Leaving {
  const goesByItself = first.reason === "ttl" || first.reason === "eviction";
  return {
    ...first,
    reason: goesByItself ? reason : first.reason,
    forget: forget || first.forget,
    force: force || first.force,
  };
}

/** An unload resolves when the memory is free. */
function answerWhenFree({ incarnation, disposal }: Entry): Action {
  return disposal === "running" ? { do: "await", what: "unload", incarnation } : { do: "answer" };
}

function cancelNext({ id, incarnation, wanted }: Entry): Action[] {
  return wanted ? [{ do: "settle", what: "next", incarnation, error: new LoadCancelledError(id) }] : [];
}

function cancelLoad(row: Entry, reason: UnloadReason, forget: boolean): Decision {
  const { id, incarnation, failures } = row;
  const left = withoutLife(row, forget, reason);
  return {
    // a load that was not awaited says nothing about whether it would have failed again; what it took is being given back
    row: left && { ...left, failures, disposal: "running" },
    actions: [
      { do: "abort-load", incarnation },
      emitUnloaded(row, reason),
      { do: "settle", what: "load", incarnation, error: new LoadCancelledError(id) },
    ],
  };
}

function answer(row: Entry | undefined, error?: Extract<Action, { do: "answer" }>["error"]): Decision {
  return { row, actions: [error === undefined ? { do: "answer" } : { do: "answer", error }] };
}
