import { describe, expect, it } from "vitest";
import { DisposeFailedError, InsufficientMemoryError, LoadFailedError, UnloadTimeoutError } from "../../src/index.js";
import type { Backing, Status } from "../../src/index.js";
import { decide as decideWith } from "../../src/manager/decide.js";
import { blank } from "../../src/manager/decision.js";
import type { Action } from "../../src/manager/decision.js";
import { loadSettings } from "../../src/manager/options.js";
import type { LifecycleEvent } from "../../src/manager/protocol.js";
import type { Entry, Leaving } from "../../src/table/entry.js";
import { LiveModel } from "../../src/table/live-model.js";

const NOW = 1_000_000;

/** Fresh numbers for every decision: incarnation 9, order 10, the longest jitter. */
const decide = (entry: Entry | undefined, event: LifecycleEvent, now = NOW) =>
  decideWith(entry, event, { incarnation: 9, order: 10, now, chance: 0.999 });

const settings = loadSettings({}, Infinity);
const lazySettings = loadSettings({ loadPolicy: "lazy" }, Infinity);
const backing: Backing = {
  exited: new Promise(() => undefined),
  memory: () => ({ ramBytes: 0, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes: 0 }),
  queued: () => 0,
  dispose: () => Promise.resolve(),
};
const live = new LiveModel(backing);
const failure = new LoadFailedError("m", "start", new Error("no"));

/** The row as it is in a status, in its life number 1. A load was begun by a call. */
function row(status: Status | "absent", declared: boolean): Entry | undefined {
  return status === "absent" ? undefined : entry(status, declared);
}

function entry(status: Status, declared: boolean): Entry {
  const hasLife = status === "ready" || status === "unloading";
  return {
    ...blank("m", "m.gguf", settings, declared),
    status,
    incarnation: status === "registered" ? 0 : 1,
    live: hasLife ? live : undefined,
    leaving:
      status === "unloading" ? { order: 3, reason: "caller", timeoutMs: 5, force: false, forget: false } : undefined,
    error: status === "error" ? failure : undefined,
    load: status === "registered" ? undefined : { trigger: "call", at: NOW - 100 },
  };
}

/** A lazy one. */
function lazy(status: Status, over: Partial<Entry> = {}): Entry {
  return { ...entry(status, true), settings: lazySettings, onDemand: true, ...over };
}

const life = { id: "m", incarnation: 1 };
const withSource = { type: "model.load", id: "m", source: { source: "n.gguf", settings }, trigger: "call" } as const;
const byId = { type: "model.load", id: "m", source: undefined, trigger: "call" } as const;
const register = { type: "model.register", id: "m", source: "n.gguf", settings: lazySettings } as const;
const need = { type: "model.need", id: "m" } as const;
const unload = { type: "model.unload", id: "m", timeoutMs: 5, force: false, forget: false, reason: "caller" } as const;
const remove = { ...unload, forget: true } as const;
const abandoned = { type: "load.abandoned", ...life } as const;
const done = {
  type: "load.done",
  ...life,
  live,
  measured: { placement: {}, mappedBytes: 0 },
  at: 7,
  seen: { devices: [], asOf: 0 },
} as const;
const failed = { type: "load.failed", ...life, error: failure } as const;
const expired = { type: "unload.expired", order: 3, ...life, error: new UnloadTimeoutError("m", 1, 5) } as const;
const stuck = { type: "dispose.failed", ...life, error: new DisposeFailedError("m", "hung") } as const;
const checked = {
  type: "check.done",
  ...life,
  model: {
    source: "n.gguf",
    sizeBytes: 1,
    supports: ["generate"],
    defaultCapabilities: ["generate"],
    trainedContextSize: 8,
  },
  profile: { mode: "server", capabilities: ["generate"], contextSize: 8, parallel: 1, threads: 1, maxQueue: 1 },
} as const;
const unchecked = { type: "check.failed", ...life, error: new LoadFailedError("m", "resolve", "no file") } as const;
const shortage = {
  modelId: "m",
  device: "ram",
  requiredBytes: 2,
  availableBytes: 1,
  evictableBytes: 0,
} as const;
const noRoom = { type: "load.failed", ...life, error: new InsufficientMemoryError(shortage) } as const;
const noRoomInEngine = {
  ...noRoom,
  error: new InsufficientMemoryError(shortage, new Error("malloc")),
} as const;
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
  ["registered", true, remove, "absent", ["answer", "settle check load_cancelled"]],
  ["error", true, remove, "absent", ["answer"]],
  ["loading", true, remove, "absent", ["await unload", "abort-load", "model:unloaded", "settle load load_cancelled"]],
  ["ready", true, remove, "unloading", ["await unload", "model:unloading", "start-unload"]],
];

/** What concerns models that requests load, and what is checked before it is loaded. */
const lazyTable: [
  it: string,
  from: Entry | undefined,
  event: LifecycleEvent,
  to: Partial<Entry> | "absent",
  string[],
][] = [
  // register
  [
    "declares an unknown model and has its file looked at",
    undefined,
    register,
    { status: "registered", declared: true, onDemand: true, source: "n.gguf", incarnation: 9 },
    ["await check", "model:registered", "start-check"],
  ],
  ["refuses an id that is registered", lazy("registered"), register, { incarnation: 0 }, ["answer already_loaded"]],
  ["refuses an id that is loading", entry("loading", false), register, { incarnation: 1 }, ["answer already_loaded"]],
  ["refuses an id that is ready", entry("ready", true), register, { incarnation: 1 }, ["answer already_loaded"]],
  [
    "replaces a declaration that turned out bad",
    lazy("error"),
    register,
    { status: "registered", source: "n.gguf", incarnation: 9, error: undefined },
    ["await check", "model:registered", "start-check"],
  ],
  [
    "keeps what has crashed until what is left of it is disposed",
    lazy("error", { disposal: "running" }),
    register,
    { status: "error" },
    ["answer already_loaded"],
  ],
  [
    "keeps what is in error without being declared",
    entry("error", false),
    register,
    { declared: false },
    ["answer already_loaded"],
  ],
  // its check
  [
    "knows what the file is once it has been looked at",
    lazy("registered", { incarnation: 1 }),
    checked,
    { status: "registered", model: checked.model, profile: checked.profile },
    ["settle check"],
  ],
  [
    "puts a model with a bad file in error",
    lazy("registered", { incarnation: 1 }),
    unchecked,
    { status: "error", declared: true, error: unchecked.error },
    ["model:error", "settle check load_failed"],
  ],
  [
    "drops a check that a load has overtaken",
    lazy("loading", { incarnation: 2 }),
    checked,
    { incarnation: 2 },
    ["settle check"],
  ],
  [
    "drops a bad check that a load has overtaken",
    lazy("ready", { incarnation: 2 }),
    unchecked,
    { status: "ready", error: undefined },
    ["settle check load_failed"],
  ],
  ["drops the check of what was removed", undefined, checked, "absent", ["settle check"]],
  // a request
  ["tells a request that there is no such model", undefined, need, "absent", ["answer not_loaded"]],
  ["gives a request a lease on what is ready", entry("ready", false), need, { status: "ready" }, ["answer"]],
  ["lets a request join any load", entry("loading", false), need, { incarnation: 1 }, ["await load"]],
  [
    "begins a load for a request",
    lazy("registered"),
    need,
    { status: "loading", incarnation: 9, onDemand: true, load: { trigger: "request", at: NOW } },
    ["await load", "model:loading", "start-load"],
  ],
  [
    "loads an eager model only for who asks for it by hand",
    entry("registered", true),
    need,
    { status: "registered" },
    ["answer not_ready"],
  ],
  [
    "begins no load of an eager model that failed",
    entry("error", true),
    need,
    { status: "error" },
    ["answer not_ready"],
  ],
  [
    "tries again what failed, when its time has come",
    lazy("error", { failures: { count: 1, retryAt: NOW } }),
    need,
    { status: "loading", failures: { count: 1, retryAt: NOW } },
    ["await load", "model:loading", "start-load"],
  ],
  [
    "tells what failed before, until its time has come",
    lazy("error", { failures: { count: 1, retryAt: NOW + 1 } }),
    need,
    { status: "error" },
    ["answer load_failed"],
  ],
  [
    "never loads what cannot be disposed",
    lazy("error", { disposal: "stuck" }),
    need,
    { status: "error" },
    ["answer not_ready"],
  ],
  [
    "lets a request wait for the next life while the last is disposed",
    lazy("error", { disposal: "running" }),
    need,
    { status: "error", wanted: "request" },
    ["await next"],
  ],
  [
    "lets a request wait for the next life of a lazy model that leaves",
    lazy("unloading"),
    need,
    { status: "unloading", wanted: "request" },
    ["await next"],
  ],
  [
    "has no next life of what is removed",
    lazy("unloading", { leaving: leaving({ forget: true }) }),
    need,
    { wanted: undefined },
    ["answer not_ready"],
  ],
  [
    "has no next life of an eager model that was unloaded by hand",
    entry("unloading", true),
    need,
    { wanted: undefined },
    ["answer not_ready"],
  ],
  [
    "has one of an eager model that made room",
    { ...entry("unloading", true), leaving: leaving({ reason: "eviction" }) },
    need,
    { wanted: "request" },
    ["await next"],
  ],
  [
    "has none of what was never declared",
    { ...entry("unloading", false), leaving: leaving({ reason: "ttl" }) },
    need,
    { wanted: undefined },
    ["answer not_ready"],
  ],
  // the next life
  [
    "begins the next life when the memory of the last is free",
    lazy("unloading", { wanted: "request" }),
    released,
    { status: "loading", incarnation: 9, wanted: undefined },
    ["model:unloaded", "settle unload", "follow", "model:loading", "start-load"],
  ],
  [
    "begins it after a crash as well",
    lazy("error", { wanted: "request", disposal: "running" }),
    released,
    { status: "loading", incarnation: 9, wanted: undefined },
    ["settle unload", "follow", "model:loading", "start-load"],
  ],
  [
    "tells who waits for it that it is too soon",
    lazy("error", { wanted: "request", disposal: "running", failures: { count: 3, retryAt: NOW + 9 } }),
    released,
    { status: "error", wanted: undefined, disposal: undefined },
    ["settle unload", "settle next load_failed"],
  ],
  [
    "tells who waits for it that the model was removed meanwhile",
    lazy("unloading", { wanted: "request", leaving: leaving({ forget: true }) }),
    released,
    "absent",
    ["model:unloaded", "settle unload", "settle next not_loaded"],
  ],
  [
    "gives this life to who waits for the next when the unload is given up",
    lazy("unloading", { wanted: "request" }),
    expired,
    { status: "ready", wanted: undefined },
    ["settle next", "model:ready", "settle unload unload_timeout"],
  ],
  [
    "tells who waits for it that the last cannot be disposed",
    lazy("unloading", { wanted: "request" }),
    stuck,
    { status: "error", wanted: undefined, disposal: "stuck" },
    ["model:error", "settle next not_ready", "settle unload dispose_failed"],
  ],
  [
    "begins none when nobody waits any more",
    lazy("unloading", { wanted: "request" }),
    abandoned,
    { status: "unloading", wanted: undefined },
    [],
  ],
  [
    "lets a load by hand wait for the next life as well, and begins it without regard to failures",
    lazy("error", { wanted: "request", disposal: "running" }),
    byId,
    { status: "error", wanted: "call" },
    ["await next"],
  ],
  [
    "begins what is loaded by hand whatever has failed before",
    lazy("error", { wanted: "call", disposal: "running", failures: { count: 3, retryAt: NOW + 30_000 } }),
    released,
    { status: "loading", wanted: undefined, load: { trigger: "call", at: NOW } },
    ["settle unload", "follow", "model:loading", "start-load"],
  ],
  [
    "tells who waits for it of an unload by hand",
    lazy("error", { wanted: "request", disposal: "running" }),
    unload,
    { status: "registered", wanted: undefined, disposal: "running" },
    ["settle next load_cancelled", "await unload"],
  ],
  // who leaves
  [
    "aborts the load of a lazy model for which nobody waits",
    lazy("loading", { load: { trigger: "request", at: 0 } }),
    abandoned,
    { status: "registered", onDemand: true, disposal: "running" },
    ["abort-load", "model:unloaded", "settle load load_cancelled"],
  ],
  [
    "keeps an eager load for which nobody waits",
    { ...entry("loading", true), load: { trigger: "eager", at: 0 } },
    abandoned,
    { status: "loading" },
    [],
  ],
  [
    "lets a request wait until what a cancelled load took is given back",
    lazy("registered", { incarnation: 1, disposal: "running" }),
    need,
    { status: "registered", wanted: "request" },
    ["await next"],
  ],
  [
    "begins the next life then",
    lazy("registered", { incarnation: 1, disposal: "running", wanted: "request" }),
    released,
    { status: "loading", incarnation: 9, wanted: undefined },
    ["settle unload", "follow", "model:loading", "start-load"],
  ],
  [
    "makes an unload wait for it as well, and tells who waits for the next life",
    lazy("registered", { incarnation: 1, disposal: "running", wanted: "request" }),
    unload,
    { status: "registered", wanted: undefined, disposal: "running" },
    ["settle next load_cancelled", "await unload"],
  ],
  ["keeps a later life", lazy("loading", { incarnation: 2 }), abandoned, { status: "loading", incarnation: 2 }, []],
  // failures
  [
    "counts a failed load",
    lazy("loading", { failures: { count: 1, retryAt: 0 } }),
    failed,
    { status: "error", failures: { count: 2, retryAt: NOW + 1998 } },
    ["model:error", "settle load load_failed"],
  ],
  [
    "does not count that there was no room",
    lazy("loading", { failures: { count: 1, retryAt: 0 } }),
    noRoom,
    { status: "error", failures: { count: 1, retryAt: 0 } },
    ["model:error", "settle load insufficient_memory"],
  ],
  [
    "counts a load for which the engine had no room although the plan had found some",
    lazy("loading", { failures: { count: 1, retryAt: 0 } }),
    noRoomInEngine,
    { status: "error", failures: { count: 2, retryAt: NOW + 1998 } },
    ["model:error", "settle load insufficient_memory"],
  ],
  [
    "counts a life that ended early in a crash",
    lazy("ready", { loadedAt: NOW - 59_999, failures: { count: 1, retryAt: 0 } }),
    crashed,
    { status: "error", failures: { count: 2, retryAt: NOW + 1998 }, disposal: "running" },
    ["abort-requests", "model:error", "start-unload"],
  ],
  [
    "forgets earlier failures once a life has lasted",
    lazy("ready", { loadedAt: NOW - 60_000, failures: { count: 2, retryAt: 0 } }),
    crashed,
    { failures: { count: 1, retryAt: NOW + 999 } },
    ["abort-requests", "model:error", "start-unload"],
  ],
  [
    "forgets them when it is loaded by hand",
    lazy("error", { failures: { count: 5, retryAt: NOW + 1e6 } }),
    byId,
    { status: "loading", failures: undefined },
    ["await load", "model:loading", "start-load"],
  ],
  [
    "forgets them when it is unloaded by hand",
    lazy("error", { failures: { count: 5, retryAt: NOW + 1e6 } }),
    unload,
    { status: "registered", failures: undefined },
    ["answer"],
  ],
  [
    "keeps them where a load was cancelled",
    lazy("loading", { load: { trigger: "request", at: 0 }, failures: { count: 2, retryAt: 5 } }),
    abandoned,
    { status: "registered", failures: { count: 2, retryAt: 5 } },
    ["abort-load", "model:unloaded", "settle load load_cancelled"],
  ],
];

/** An unload under way, in its order 3. */
function leaving(over: Partial<Leaving>): Leaving {
  return { order: 3, reason: "caller", timeoutMs: 5, force: false, forget: false, ...over };
}

describe("decide", () => {
  it.each(lazyTable)("%s", (_it, from, event, to, actions) => {
    const decision = decide(from, event);

    if (to === "absent") expect(decision.row).toBeUndefined();
    else expect(decision.row).toMatchObject(to);
    expect(decision.actions.map(brief)).toEqual(actions);
  });

  it.each([
    ["ttl", true],
    ["eviction", true],
    ["caller", false],
    ["close", false],
  ] as const)("brings an eager model back for a request after an unload by %s: %s", (reason, comesBack) => {
    const going = decide(row("ready", true), { ...unload, reason }).row;

    const gone = decide(going, released).row;

    expect(gone).toMatchObject({ status: "registered", onDemand: comesBack });
    expect(decide(gone, need).row?.status).toBe(comesBack ? "loading" : "registered");
  });

  it("lets a model that was going by itself stay away once somebody unloads it by hand", () => {
    const going = row("unloading", true);
    if (going?.leaving === undefined) throw new Error("no row");
    const evicted = { ...going, leaving: { ...going.leaving, reason: "eviction" } } as const;

    const { row: unloaded } = decide(decide(evicted, unload).row, released);

    expect(decide(evicted, released).row?.onDemand).toBe(true);
    expect(unloaded?.onDemand).toBe(false);
  });

  it.each([
    ["loading", { load: { trigger: "request", at: 0 } }],
    ["registered", {}],
    ["registered", { disposal: "running", wanted: "request" }],
    ["error", {}],
  ] as const)(
    "lets an eager model that went by itself stay away once it is unloaded by hand while %s",
    (status, over) => {
      const wentByItself = { ...entry(status, true), onDemand: true, ...over };

      expect(decide(wentByItself, unload).row).toMatchObject({ status: "registered", onDemand: false });
      expect(decide(wentByItself, need).row?.onDemand).toBe(true);
    },
  );

  it.each([
    ["ttl", true],
    ["caller", false],
  ] as const)("after a disposal that hung, an unload by %s lets an eager model come back: %s", (reason, comesBack) => {
    // it went by itself before, and came back for a request
    const going = { ...entry("unloading", true), onDemand: reason === "caller", leaving: leaving({ reason }) };

    const hung = decide(going, stuck).row;
    const gone = decide(hung, released).row;

    expect(decide(hung, need).actions.map(brief)).toEqual(["answer not_ready"]);
    expect(decide(gone, need).row?.status).toBe(comesBack ? "loading" : "error");
  });

  it("lets an eager model that went by itself come back when whom it was loaded for has left", () => {
    const loading = { ...entry("loading", true), onDemand: true, load: { trigger: "request", at: 0 } } as const;

    expect(decide(loading, abandoned).row).toMatchObject({ status: "registered", onDemand: true });
  });

  it("tells why and for how long it is not tried again", () => {
    const before = lazy("error", { failures: { count: 3, retryAt: NOW + 30_000 } });

    expect(decide(before, need, NOW + 1).actions).toEqual([
      {
        do: "answer",
        error: expect.objectContaining({ code: "load_failed", phase: "start", retryAfterMs: 29_999, cause: failure }),
      },
    ]);
  });

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
