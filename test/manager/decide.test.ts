import { describe, expect, it } from "vitest";
import { LoadFailedError, UnloadTimeoutError, DisposeFailedError } from "../../src/index.js";
import type { Backing, Status } from "../../src/index.js";
import { decide as decideWith } from "../../src/manager/decide.js";
import { blank } from "../../src/manager/decision.js";
import type { Action } from "../../src/manager/decision.js";
import type { LifecycleEvent } from "../../src/manager/protocol.js";
import type { Entry } from "../../src/table/entry.js";
import { LiveModel } from "../../src/table/live-model.js";

/** Fresh numbers for every decision: incarnation 9, order 10. */
const decide = (entry: Entry | undefined, event: LifecycleEvent) =>
  decideWith(entry, event, { incarnation: 9, order: 10 });

const settings = { capabilities: undefined, mode: undefined, engine: {} };
const backing: Backing = {
  exited: new Promise(() => undefined),
  memory: () => ({ ramBytes: 0, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes: 0 }),
  queued: () => 0,
  dispose: () => Promise.resolve(),
};
const live = new LiveModel(backing);
const failure = new LoadFailedError("m", "start", new Error("no"));

/** The row as it is in a status, in its life number 1. */
function row(status: Status | "absent", declared: boolean): Entry | undefined {
  if (status === "absent") return undefined;
  const hasLife = status === "ready" || status === "unloading";
  return {
    ...blank("m", "m.gguf", settings, declared),
    status,
    incarnation: status === "registered" ? 0 : 1,
    live: hasLife ? live : undefined,
    leaving:
      status === "unloading" ? { order: 3, reason: "caller", timeoutMs: 5, force: false, forget: false } : undefined,
    error: status === "error" ? failure : undefined,
  };
}

const life = { id: "m", incarnation: 1 };
const withSource = { type: "model.load", id: "m", source: { source: "n.gguf", settings } } as const;
const byId = { type: "model.load", id: "m", source: undefined } as const;
const unload = { type: "model.unload", id: "m", timeoutMs: 5, force: false, forget: false, reason: "caller" } as const;
const remove = { ...unload, forget: true } as const;
const abandoned = { type: "load.abandoned", ...life } as const;
const done = {
  type: "load.done",
  ...life,
  live,
  measured: { placement: {}, mappedBytes: 0 },
  at: 7,
  devices: [],
} as const;
const failed = { type: "load.failed", ...life, error: failure } as const;
const expired = { type: "unload.expired", order: 3, ...life, error: new UnloadTimeoutError("m", 1, 5) } as const;
const stuck = { type: "dispose.failed", ...life, error: new DisposeFailedError("m", "hung") } as const;
const released = { type: "memory.released", ...life } as const;
const crashed = { type: "backing.down", ...life, exit: { reason: "crashed", cause: new Error("boom") } } as const;
const disposed = { type: "backing.down", ...life, exit: { reason: "disposed" } } as const;

/** `do` of each action, with what tells them apart. */
function brief(action: Action): string {
  switch (action.do) {
    case "answer":
      return action.error ? `answer ${action.error.code}` : "answer";
    case "await":
      return `await ${action.what}`;
    case "settle":
      return action.error ? `settle ${action.what} ${action.error.code}` : `settle ${action.what}`;
    case "emit":
      return action.notice.name;
    default:
      return action.do;
  }
}

const table: [
  from: Status | "absent",
  declared: boolean,
  event: LifecycleEvent,
  to: Status | "absent",
  actions: string[],
][] = [
  // load
  ["absent", false, withSource, "loading", ["await load", "model:loading", "start-load"]],
  ["absent", false, byId, "absent", ["answer not_loaded"]],
  ["registered", true, byId, "loading", ["await load", "model:loading", "start-load"]],
  ["registered", true, withSource, "registered", ["answer already_loaded"]],
  ["loading", false, withSource, "loading", ["answer already_loaded"]],
  ["loading", true, byId, "loading", ["answer already_loaded"]],
  ["ready", false, withSource, "ready", ["answer already_loaded"]],
  ["unloading", false, withSource, "unloading", ["answer already_loaded"]],
  ["error", false, withSource, "loading", ["await load", "model:loading", "start-load"]],
  ["error", false, byId, "loading", ["await load", "model:loading", "start-load"]],
  ["error", true, byId, "loading", ["await load", "model:loading", "start-load"]],
  ["error", true, withSource, "error", ["answer already_loaded"]],
  // its outcome
  ["loading", false, done, "ready", ["watch", "settle load", "model:ready"]],
  ["loading", false, failed, "absent", ["model:error", "settle load load_failed"]],
  ["loading", true, failed, "error", ["model:error", "settle load load_failed"]],
  ["absent", false, done, "absent", ["start-unload"]],
  ["registered", true, done, "registered", ["start-unload"]],
  ["absent", false, failed, "absent", ["settle load load_failed"]],
  // cancelling it
  ["loading", false, unload, "absent", ["await unload", "abort-load", "model:unloaded", "settle load load_cancelled"]],
  [
    "loading",
    true,
    unload,
    "registered",
    ["await unload", "abort-load", "model:unloaded", "settle load load_cancelled"],
  ],
  ["loading", false, abandoned, "absent", ["abort-load", "model:unloaded", "settle load load_cancelled"]],
  ["loading", true, abandoned, "registered", ["abort-load", "model:unloaded", "settle load load_cancelled"]],
  ["ready", false, abandoned, "ready", []],
  // unload
  ["absent", false, unload, "absent", ["answer not_loaded"]],
  ["registered", true, unload, "registered", ["answer"]],
  ["ready", false, unload, "unloading", ["await unload", "model:unloading", "start-unload"]],
  ["unloading", false, unload, "unloading", ["await unload"]],
  ["unloading", false, { ...unload, force: true }, "unloading", ["await unload", "hasten-unload"]],
  ["error", false, unload, "absent", ["answer"]],
  ["error", true, unload, "registered", ["answer"]],
  // its outcome
  ["unloading", false, released, "absent", ["model:unloaded", "settle unload"]],
  ["unloading", true, released, "registered", ["model:unloaded", "settle unload"]],
  ["unloading", false, expired, "ready", ["model:ready", "settle unload unload_timeout"]],
  ["unloading", false, { ...expired, order: 2 }, "unloading", []],
  ["unloading", false, stuck, "error", ["model:error", "settle unload dispose_failed"]],
  ["error", false, released, "error", ["settle unload"]],
  ["absent", false, released, "absent", ["settle unload"]],
  // a backing that ends
  ["ready", false, crashed, "error", ["abort-requests", "model:error", "start-unload"]],
  ["ready", true, crashed, "error", ["abort-requests", "model:error", "start-unload"]],
  ["unloading", false, crashed, "unloading", ["abort-requests", "hasten-unload"]],
  ["unloading", false, disposed, "unloading", []],
  ["ready", false, disposed, "error", ["abort-requests", "model:error", "start-unload"]],
  ["absent", false, crashed, "absent", []],
  ["error", false, crashed, "error", []],
  // forgetting the declaration as well
  ["absent", false, remove, "absent", ["answer not_loaded"]],
  ["registered", true, remove, "absent", ["answer"]],
  ["error", true, remove, "absent", ["answer"]],
  ["loading", true, remove, "absent", ["await unload", "abort-load", "model:unloaded", "settle load load_cancelled"]],
  ["ready", true, remove, "unloading", ["await unload", "model:unloading", "start-unload"]],
];

describe("decide", () => {
  it.each(table)("takes %s (declared: %s) by %o to %s", (from, declared, event, to, actions) => {
    const decision = decide(row(from, declared), event);

    expect(decision.row?.status ?? "absent").toBe(to);
    expect(decision.actions.map(brief)).toEqual(actions);
  });

  it("gives each accepted load the next incarnation, and a refused one none", () => {
    expect(decide(row("absent", false), withSource).row).toMatchObject({ incarnation: 9, source: "n.gguf" });
    expect(decide(row("error", false), byId).row).toMatchObject({
      incarnation: 9,
      source: "m.gguf",
      error: undefined,
    });
    expect(decide(row("ready", false), withSource).row).toMatchObject({ incarnation: 1 });
  });

  it("forgets a declared model when its removal is done, and keeps it when that is given up", () => {
    const removing = decide(row("ready", true), remove).row;

    expect(decide(removing, released).row).toBeUndefined();
    const kept = decide(removing, { ...expired, order: 10 }).row;
    expect(kept).toMatchObject({ status: "ready", declared: true });
    expect(decide(decide(kept, unload).row, released).row).toMatchObject({ status: "registered" });
  });

  it("makes the unload of a crashed model wait while what is left is disposed", () => {
    const down = decide(row("ready", false), crashed).row;

    expect(decide(down, unload).actions.map(brief)).toEqual(["await unload"]);
    expect(decide(decide(down, released).row, unload).actions.map(brief)).toEqual(["answer"]);
  });

  it("refuses the unload of a model that is stuck, until its memory is free after all", () => {
    const hung = decide(row("unloading", false), stuck).row;

    expect(decide(hung, unload)).toMatchObject({
      row: hung,
      actions: [{ do: "answer", error: { code: "dispose_failed" } }],
    });
    expect(decide(decide(hung, released).row, unload)).toEqual({ row: undefined, actions: [{ do: "answer" }] });
  });

  it("keeps saying why a model is in error when it cannot be disposed either", () => {
    const down = decide(row("ready", false), crashed).row;

    expect(decide(down, stuck).row?.error).toMatchObject({ code: "backing_crashed" });
  });

  it("orders again, with force, what a task gave up just as somebody asked for force", () => {
    const leaving = decide(row("ready", false), unload).row;
    const hastened = decide(leaving, { ...unload, force: true }).row;

    const { row: next, actions } = decide(hastened, { ...expired, order: 10 });

    expect(next).toMatchObject({ status: "unloading", leaving: { force: true, timeoutMs: 0 } });
    expect(actions).toEqual([expect.objectContaining({ do: "start-unload", force: true, timeoutMs: 0 })]);
  });

  it.each([done, failed, expired, stuck, released, crashed])("ignores $type of an earlier life", (fact) => {
    const now = { ...(row("ready", false) ?? blank("m", "m.gguf", settings, false)), incarnation: 2 };

    expect(decide(now, fact).row).toBe(now);
  });

  it.each([
    ["ready", true],
    ["unloading", true],
    ["registered", false],
    ["loading", false],
    ["error", false],
  ] as const)("keeps a backing on a row in status %s: %s", (status, hasLive) => {
    const events = table.filter(([, , , to]) => to === status);

    for (const [from, declared, event] of events) {
      const next = decide(row(from, declared), event).row;
      expect(next?.live !== undefined).toBe(hasLive);
    }
    expect(events.length).toBeGreaterThan(0);
  });
});
