import { describe, expect, it } from "vitest";
import { DEFAULT_MODEL } from "../../src/index.js";
import type { Lease } from "../../src/index.js";
import { FakeBackend } from "../../src/testing/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const LAZY = { id: "a", source: "a", loadPolicy: "lazy" } as const;

/** One lazy model, whose load is held once it has begun. */
async function startLazy(model: { ttlMs?: number; warmUp?: boolean } = {}) {
  const started = await startTestSupervisor({ models: [{ ...LAZY, ...model }] });
  await settle();
  return { ...started, gate: started.backend.hold("start", "a") };
}

/** What two parts of the tree tell each other takes a few microtasks; each of these is the moment for something else. */
const GAPS = Array.from({ length: 30 }, (_, gap) => gap);

async function microtasks(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await Promise.resolve();
}

/** A reply that the test holds. */
function holdReply(backend: FakeBackend) {
  return backend.hold("generate");
}

describe("a lazy model", () => {
  it("is looked at when it is declared, and not loaded", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [LAZY],
      fake: { models: { a: { ramBytes: 7, trainedContextSize: 128 } } },
    });
    await settle();

    expect(models.info("a")).toMatchObject({
      status: "registered",
      declared: true,
      loadPolicy: "lazy",
      capabilities: ["generate", "chat"],
      contextSize: 128,
      sizeBytes: 7,
      placement: {},
    });
    expect(backend.log).toEqual([]);
    expect(models.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([0]);
  });

  it("is loaded once for all who come while it loads", async () => {
    const { models, backend, gate } = await startLazy();

    const answers = Promise.all(Array.from({ length: 8 }, (_, index) => models.generate("a", `prompt ${index}`)));
    await gate.arrived();
    expect(models.info("a")?.status).toBe("loading");
    gate.open();

    expect((await answers).map(({ modelId }) => modelId)).toEqual(Array(8).fill("a"));
    expect(backend.log).toEqual(["start a"]);
    expect(backend.maxLiveCopies).toBe(1);
  });

  it("is loaded beside another one: neither waits for the other", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [LAZY, { ...LAZY, id: "b", source: "b" }],
    });
    const gates = [backend.hold("start", "a"), backend.hold("start", "b")];
    const requests = [models.generate("a", "hi"), models.generate("b", "hi")];
    await Promise.all(gates.map((gate) => gate.arrived()));

    gates[1]?.open();
    expect((await requests[1])?.modelId).toBe("b");
    expect(models.info("a")?.status).toBe("loading");
    gates[0]?.open();

    expect((await requests[0])?.modelId).toBe("a");
  });

  it("is loaded for whatever is asked of it", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ ...LAZY, capabilities: ["generate", "chat", "embed", "rank"] }],
    });
    const asks: (() => Promise<unknown>)[] = [
      () => models.generate("a", "hi"),
      () => models.stream("a", "hi").result,
      () => models.chat("a", [{ role: "user", content: "hi" }]),
      () => models.streamChat("a", [{ role: "user", content: "hi" }]).result,
      () => models.embed("a", "hi"),
      () => models.embedMany("a", ["hi"]),
      () => models.rank("a", "hi", ["ho"]),
      () => models.tokenize("a", "hi"),
      () => models.acquire("a").then((lease) => lease.release()),
    ];

    for (const [index, ask] of asks.entries()) {
      await ask();
      await models.unload("a");
      expect(backend.log.filter((line) => line === "start a")).toHaveLength(index + 1);
    }
  });

  it("is loaded by nothing that only looks", async () => {
    const { models, backend } = await startLazy();

    models.list();
    models.info("a");
    models.isLoaded("a");
    models.memory();
    models.tree();
    models.defaultId();
    await models.plan("a");
    await models.devices();
    await models.ready();
    await settle();

    expect(models.info("a")?.status).toBe("registered");
    expect(backend.log).toEqual([]);
  });

  it("can be the default model", async () => {
    const { models } = await startTestSupervisor({ models: [{ ...LAZY, default: true }] });

    expect(models.defaultId()).toBe("a");
    expect((await models.generate(DEFAULT_MODEL, "hi")).modelId).toBe("a");
  });

  it("can be loaded by hand, which a request joins", async () => {
    const { models, backend, gate } = await startLazy();

    const byHand = models.load("a");
    const joined = models.generate("a", "hi");
    gate.open();

    expect(await byHand).toMatchObject({ status: "ready" });
    expect((await joined).modelId).toBe("a");
    expect(backend.log).toEqual(["start a"]);
  });

  it("is loaded again by a request after an unload by hand", async () => {
    const { models, backend, gate } = await startLazy();
    gate.open();
    await models.generate("a", "hi");
    await models.unload("a");

    await models.generate("a", "hi");

    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
  });

  it("still knows what its file is after a load that was cancelled", async () => {
    const { models, backend } = await startLazy();
    const { status, capabilities, contextSize, sizeBytes } = models.info("a") ?? {};
    const gate = backend.hold("resolve");
    const controller = new AbortController();
    const request = rejection(models.generate("a", "hi", { signal: controller.signal }));
    await gate.arrived();

    controller.abort(new Error("gone"));
    await request;
    await settle();

    expect(models.info("a")).toMatchObject({ status, capabilities, contextSize, sizeBytes });
  });
});

describe("each who waits for a load", () => {
  it("may leave by its own signal, and the others go on waiting", async () => {
    const { models, backend, gate } = await startLazy();
    const controller = new AbortController();
    const leaver = rejection(models.generate("a", "one", { signal: controller.signal }));
    const stayer = models.generate("a", "two");
    await gate.arrived();

    controller.abort(new Error("gone"));
    expect(await leaver).toMatchObject({ message: "gone" });
    gate.open();

    expect((await stayer).modelId).toBe("a");
    expect(backend.log).toEqual(["start a"]);
    expect(models.info("a")?.leases).toBe(0);
  });

  it("has its own time, which ends in request_timeout with phase load", async () => {
    const { models, clock, gate } = await startLazy();
    const hasty = rejection(models.generate("a", "one", { timeoutMs: 100 }));
    const hastyLease = rejection(models.acquire("a", { timeoutMs: 100 }));
    const patient = models.generate("a", "two", { timeoutMs: 200 });
    await gate.arrived();

    clock.increment(100);
    const expected = { code: "request_timeout", modelId: "a", phase: "load" };
    expect(await hasty).toMatchObject(expected);
    expect(await hastyLease).toMatchObject(expected);
    gate.open();

    expect((await patient).modelId).toBe("a");
  });

  it("has its time for the load and the answer together", async () => {
    const { models, backend, clock, gate } = await startLazy();
    const reply = holdReply(backend);
    const request = rejection(models.generate("a", "one", { timeoutMs: 100 }));
    await gate.arrived();
    clock.increment(60);
    gate.open();
    await reply.arrived();

    clock.increment(40);

    expect(await request).toMatchObject({ code: "request_timeout" });
    reply.open();
  });

  it("is refused at once where it does not want to wait, and begins no load", async () => {
    const { models, backend, gate } = await startLazy();

    const before = await rejection(models.generate("a", "hi", { waitForLoad: false }));
    const beforeLease = await rejection(models.acquire("a", { waitForLoad: false }));
    expect([before, beforeLease]).toEqual(
      Array(2).fill(expect.objectContaining({ code: "not_ready", modelId: "a", status: "registered" })),
    );
    expect(gate.arrivals).toBe(0);
    const waiting = models.generate("a", "hi");
    await gate.arrived();
    expect(await rejection(models.embed("a", "hi", { waitForLoad: false }))).toMatchObject({
      code: "not_ready",
      status: "loading",
    });
    gate.open();
    await waiting;
    expect((await models.generate("a", "hi", { waitForLoad: false })).modelId).toBe("a");
    expect(backend.log).toEqual(["start a"]);
  });

  it("is told of the failure of the load", async () => {
    const { models, backend, gate } = await startLazy();
    backend.fail("start", new Error("no"), "a");
    const requests = [rejection(models.generate("a", "one")), rejection(models.acquire("a"))];
    gate.open();

    for (const error of await Promise.all(requests))
      expect(error).toMatchObject({ code: "load_failed", modelId: "a", phase: "start" });
    expect(models.info("a")).toMatchObject({ status: "error", declared: true });
  });

  it("is told when the load is cancelled by an unload", async () => {
    const { models, gate } = await startLazy();
    const request = rejection(models.generate("a", "one"));
    await gate.arrived();

    await models.unload("a");

    expect(await request).toMatchObject({ code: "load_cancelled", modelId: "a" });
    expect(models.info("a")?.status).toBe("registered");
  });

  it("loads nothing when its signal was aborted before", async () => {
    const { models, gate } = await startLazy();
    const signal = AbortSignal.abort(new Error("gone"));

    expect(await rejection(models.generate("a", "hi", { signal }))).toMatchObject({ message: "gone" });
    expect(await rejection(models.acquire("a", { signal }))).toMatchObject({ message: "gone" });
    await settle();

    expect(models.info("a")?.status).toBe("registered");
    expect(gate.arrivals).toBe(0);
  });
});

describe("the last who leaves a load", () => {
  it("ends it, if the load was begun by a request: nothing stays behind", async () => {
    const { models, backend, gate } = await startLazy();
    const controllers = [new AbortController(), new AbortController()];
    const requests = controllers.map(({ signal }) => rejection(models.generate("a", "hi", { signal })));
    await gate.arrived();

    controllers[0]?.abort(new Error("first"));
    await settle();
    expect(models.info("a")?.status).toBe("loading");
    controllers[1]?.abort(new Error("second"));
    await settle();

    expect(await Promise.all(requests)).toMatchObject([{ message: "first" }, { message: "second" }]);
    expect(models.info("a")).toMatchObject({ status: "registered", leases: 0 });
    expect(models.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([0]);
    expect([backend.liveCopies, backend.log]).toEqual([0, []]);
  });

  it("ends it when it leaves by its time as well", async () => {
    const { models, clock, gate } = await startLazy();
    const request = rejection(models.acquire("a", { timeoutMs: 50 }));
    await gate.arrived();

    clock.increment(50);
    await request;
    await settle();

    expect(models.info("a")?.status).toBe("registered");
  });

  it("does not end it if the model is an eager one", async () => {
    const { models, backend, gate } = await startEagerHeld();
    const controller = new AbortController();
    const request = rejection(models.generate("a", "hi", { signal: controller.signal }));
    await gate.arrived();

    controller.abort(new Error("gone"));
    await request;
    await settle();

    expect(models.info("a")?.status).toBe("loading");
    gate.open();
    await models.ready();
    expect(backend.log).toEqual(["start a"]);
  });

  it("does not end one for which a call of load waits", async () => {
    const { models, gate } = await startLazy();
    const controller = new AbortController();
    const byHand = models.load("a");
    const request = rejection(models.generate("a", "hi", { signal: controller.signal }));
    await gate.arrived();

    controller.abort(new Error("gone"));
    await request;
    gate.open();

    expect(await byHand).toMatchObject({ status: "ready" });
  });
});

/** An eager model, whose load is held. */
async function startEagerHeld() {
  const backend = new FakeBackend();
  const gate = backend.hold("start", "a");
  return { ...(await startTestSupervisor({ backend, models: [{ id: "a", source: "a" }] })), gate };
}

describe("a request that meets an eager load", () => {
  it("joins it", async () => {
    const { models, backend, gate } = await startEagerHeld();
    const request = models.generate("a", "hi");
    await gate.arrived();
    gate.open();

    expect((await request).modelId).toBe("a");
    expect(backend.log).toEqual(["start a"]);
  });

  it("is told of its failure", async () => {
    const { models, gate } = await startEagerHeld();
    const request = rejection(models.generate("a", "hi"));
    await gate.arrived();

    gate.fail(new Error("no"));

    expect(await request).toMatchObject({ code: "load_failed", modelId: "a" });
  });
});

describe("the lease of who waited for a load", () => {
  it("is taken in the step in which the model becomes ready, so that nobody can unload it before", async () => {
    const { models, backend, gate } = await startLazy();
    const reply = holdReply(backend);
    const seen: unknown[] = [];
    let unloading: Promise<unknown> | undefined;
    models.on("model:ready", () => {
      seen.push(models.info("a")?.leases);
      unloading = models.unload("a");
    });
    const requests = [models.generate("a", "one"), models.generate("a", "two")];
    await gate.arrived();
    gate.open();
    await reply.arrived(2);

    expect(seen).toEqual([2]);
    expect(backend.log).toEqual(["start a"]);
    reply.open();
    expect((await Promise.all(requests)).map(({ modelId }) => modelId)).toEqual(["a", "a"]);
    await unloading;
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(backend.disposalsInFlight).toBe(0);
  });

  it.each(GAPS)("is not lost when its owner leaves as the load ends (%d microtasks later)", async (gap) => {
    const { models, backend, gate } = await startLazy();
    const controllers = [new AbortController(), new AbortController()];
    const request = models.generate("a", "hi", { signal: controllers[0]?.signal }).catch((error: unknown) => error);
    const acquiring = models.acquire("a", { signal: controllers[1]?.signal }).catch((error: unknown) => error);
    await gate.arrived();
    gate.open();
    await microtasks(gap);

    for (const controller of controllers) controller.abort(new Error("gone"));
    const [, lease] = await Promise.all([request, acquiring]);
    if (isLease(lease)) lease.release();
    await settle();

    expect(models.info("a")?.leases).toBe(0);
    expect(["ready", "registered"]).toContain(models.info("a")?.status);
    expect(backend.liveCopies).toBe(models.isLoaded("a") ? 1 : 0);
    await models.unload("a", { timeoutMs: 0 });
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("is not lost when its time is up as the load ends (%d microtasks later)", async (gap) => {
    const { models, backend, clock, gate } = await startLazy();
    const request = models.generate("a", "hi", { timeoutMs: 10 }).catch((error: unknown) => error);
    await gate.arrived();
    gate.open();
    await microtasks(gap);

    clock.increment(10);
    await request;
    await settle();

    expect(models.info("a")?.leases).toBe(0);
    await models.unload("a", { timeoutMs: 0 });
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("is ended by a forced unload also on its way to who waited (%d microtasks later)", async (gap) => {
    const { models, backend, gate } = await startLazy();
    backend.hold("generate", "a");
    const request = models.generate("a", "hi").catch((error: unknown) => error);
    const acquiring = models.acquire("a").catch((error: unknown) => error);
    await gate.arrived();
    gate.open();
    await microtasks(gap);

    // without the abort it would wait for the request, which never ends
    await models.unload("a", { force: true });
    const lease = await acquiring;

    expect(await request).toMatchObject({ code: expect.stringMatching(/^(load_cancelled|request_aborted)$/) });
    if (isLease(lease)) await expect(lease.generate("hi")).rejects.toMatchObject({ code: "request_aborted" });
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("is not lost when the supervisor closes as the load ends (%d microtasks later)", async (gap) => {
    const { models, backend, gate } = await startLazy();
    const request = models.generate("a", "hi").catch((error: unknown) => error);
    const acquiring = models.acquire("a").catch((error: unknown) => error);
    await gate.arrived();
    gate.open();
    await microtasks(gap);

    const closing = models.close({ timeoutMs: 0 });
    await Promise.all([request, acquiring]);
    await closing;

    expect(await models.closed).toEqual({ reason: "closed", unreleased: [] });
    expect(backend.liveCopies).toBe(0);
  });
});

function isLease(value: unknown): value is Lease {
  return typeof value === "object" && value !== null && "release" in value && typeof value.release === "function";
}

describe("a request that comes while a model leaves", () => {
  /** A lazy model that is being disposed. */
  async function leavingModel() {
    const started = await startLazy();
    started.gate.open();
    await started.models.generate("a", "hi");
    const disposal = started.backend.hold("dispose", "a");
    const unloading = started.models.unload("a");
    await disposal.arrived();
    return { ...started, disposal, unloading };
  }

  it("waits for the next life if it is lazy, which begins when the last is gone", async () => {
    const { models, backend, disposal, unloading } = await leavingModel();
    const requests = [models.generate("a", "one"), models.generate("a", "two")];
    await settle();
    expect(models.info("a")?.status).toBe("unloading");
    expect(backend.log).toEqual(["start a"]);

    disposal.open();
    await unloading;

    expect((await Promise.all(requests)).map(({ modelId }) => modelId)).toEqual(["a", "a"]);
    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
    expect(backend.maxLiveCopies).toBe(1);
  });

  it("may leave before, and then nothing is loaded", async () => {
    const { models, backend, disposal, unloading } = await leavingModel();
    const controller = new AbortController();
    const request = rejection(models.generate("a", "one", { signal: controller.signal }));
    await settle();

    controller.abort(new Error("gone"));
    expect(await request).toMatchObject({ message: "gone" });
    disposal.open();
    await unloading;
    await settle();

    expect(models.info("a")?.status).toBe("registered");
    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("is refused if it does not want to wait", async () => {
    const { models, disposal, unloading } = await leavingModel();

    const refused = await rejection(models.generate("a", "one", { waitForLoad: false }));
    disposal.open();
    await unloading;

    expect(refused).toMatchObject({ code: "not_ready", status: "unloading" });
  });

  it("is told when the model is removed meanwhile", async () => {
    const { models, disposal, unloading } = await leavingModel();
    const request = rejection(models.generate("a", "one"));
    const removing = models.remove("a");
    disposal.open();
    await Promise.all([unloading, removing]);

    expect(await request).toMatchObject({ code: "not_loaded", modelId: "a" });
    expect(models.info("a")).toBeUndefined();
  });

  it("is told when the model cannot be disposed", async () => {
    const { models, disposal, unloading } = await leavingModel();
    const request = rejection(models.generate("a", "one"));
    const unloaded = rejection(unloading);

    disposal.fail(new Error("stuck"));

    expect(await request).toMatchObject({ code: "not_ready", modelId: "a", status: "error" });
    expect(await unloaded).toMatchObject({ code: "dispose_failed" });
  });

  it("has the model as it is when the unload is given up", async () => {
    const { models, backend, clock, gate } = await startLazy();
    gate.open();
    const lease = await models.acquire("a");
    const unloading = rejection(models.unload("a", { timeoutMs: 10 }));
    const request = models.generate("a", "one");
    await settle();

    clock.increment(10);

    expect(await unloading).toMatchObject({ code: "unload_timeout" });
    expect((await request).modelId).toBe("a");
    lease.release();
    expect(backend.log).toEqual(["start a"]);
  });

  it("is refused if the model is eager and was unloaded by hand", async () => {
    const { models, backend } = await startTestSupervisor({ models: [{ id: "a", source: "a" }] });
    await models.ready();
    const disposal = backend.hold("dispose");
    const unloading = models.unload("a");
    await disposal.arrived();

    const during = await rejection(models.generate("a", "hi"));
    disposal.open();
    await unloading;

    expect(during).toMatchObject({ code: "not_ready", status: "unloading" });
    expect(await rejection(models.generate("a", "hi"))).toMatchObject({ code: "not_ready", status: "registered" });
    expect(await models.load("a")).toMatchObject({ status: "ready" });
  });

  it("loads a lazy model that has crashed again, when what is left of it is gone", async () => {
    const { models, backend, clock, gate } = await startLazy();
    gate.open();
    await models.generate("a", "hi");
    const disposal = backend.hold("dispose", "a");
    backend.crash("a");
    await disposal.arrived();
    clock.increment(1_000);

    const request = models.generate("a", "again");
    await settle();
    expect(backend.log).toEqual(["start a"]);
    disposal.open();

    expect((await request).modelId).toBe("a");
    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
  });
});

describe("register", () => {
  it("declares a model that the first request loads, and resolves once its file has been looked at", async () => {
    const { models, backend } = await startTestSupervisor({ fake: { models: { a: { ramBytes: 5 } } } });
    const registered: unknown[] = [];
    models.on("model:registered", (event) => registered.push(event));

    const info = await models.register("a", "a", { ttlMs: 5_000, contextSize: 64 });

    expect(info).toMatchObject({
      id: "a",
      status: "registered",
      declared: true,
      loadPolicy: "lazy",
      sizeBytes: 5,
      contextSize: 64,
      capabilities: ["generate", "chat"],
    });
    expect(registered).toEqual([{ modelId: "a" }]);
    expect(backend.log).toEqual([]);
    expect((await models.generate("a", "hi")).modelId).toBe("a");
  });

  it("rejects for a bad file, which stays declared, in error", async () => {
    const { models } = await startTestSupervisor({ fake: { models: {} } });

    const error = await rejection(models.register("a", "nowhere"));

    expect(error).toMatchObject({ code: "source_unavailable", source: "nowhere" });
    expect(models.info("a")).toMatchObject({
      status: "error",
      declared: true,
      error: { code: "source_unavailable" },
    });
  });

  it("may be done again for what was no good, and not for what is", async () => {
    const { models } = await startTestSupervisor({ fake: { models: { a: {} } } });
    await rejection(models.register("a", "nowhere"));

    expect(await models.register("a", "a")).toMatchObject({ status: "registered", source: "a" });

    expect(await rejection(models.register("a", "a"))).toMatchObject({
      code: "already_loaded",
      modelId: "a",
      status: "registered",
    });
    expect((await models.generate("a", "hi")).modelId).toBe("a");
    expect(await rejection(models.register("a", "a"))).toMatchObject({ code: "already_loaded", status: "ready" });
    expect(await rejection(models.load("a", "a"))).toMatchObject({ code: "already_loaded" });
  });

  it("is cancelled when the model is removed while its file is looked at", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("resolve");
    const registering = rejection(models.register("a", "a"));
    await gate.arrived();

    await models.remove("a");
    expect(await registering).toMatchObject({ code: "load_cancelled", modelId: "a" });
    gate.open();
    await settle();

    expect(models.list()).toEqual([]);
    expect(await models.register("a", "other")).toMatchObject({ source: "other" });
  });

  it("lets a request load the model while its file is still looked at", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("resolve");
    const registering = models.register("a", "a");
    await gate.arrived();
    const request = models.generate("a", "hi");
    await gate.arrived(2);
    gate.open();

    expect((await request).modelId).toBe("a");
    expect(await registering).toMatchObject({ id: "a", declared: true });
    expect(models.info("a")?.status).toBe("ready");
  });

  it("may be left by its signal; the model stays declared", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("resolve");
    const controller = new AbortController();
    const registering = rejection(models.register("a", "a", { signal: controller.signal }));
    await gate.arrived();

    controller.abort(new Error("gone"));
    expect(await registering).toMatchObject({ message: "gone" });
    gate.open();
    await settle();

    expect(models.info("a")).toMatchObject({ status: "registered", capabilities: ["generate", "chat"] });
  });

  it("makes the default model where it is asked to", async () => {
    const { models } = await startTestSupervisor();

    await models.register("a", "a", { default: true });

    expect(models.defaultId()).toBe("a");
    expect((await models.generate(DEFAULT_MODEL, "hi")).modelId).toBe("a");
  });

  it("makes lazy models only", async () => {
    const { models } = await startTestSupervisor();
    const options = Object.fromEntries([["loadPolicy", "eager"]]);

    expect(await rejection(models.register("a", "a", options))).toMatchObject({
      code: "invalid_option",
      option: "loadPolicy",
    });
    expect(models.list()).toEqual([]);
  });

  it("is forgotten by remove", async () => {
    const { models } = await startTestSupervisor();
    await models.register("a", "a");

    await models.remove("a");

    expect(await rejection(models.generate("a", "hi"))).toMatchObject({ code: "not_loaded" });
  });
});

describe("readiness", () => {
  it("is of the eager models alone", async () => {
    const backend = new FakeBackend();
    const eager = backend.hold("start", "eager");
    const check = backend.hold("resolve", "lazy");
    const { models } = await startTestSupervisor({
      backend,
      models: [
        { id: "eager", source: "eager" },
        { id: "lazy", source: "lazy", loadPolicy: "lazy" },
      ],
    });
    await Promise.all([eager.arrived(), check.arrived()]);
    expect(models.tree().ready).toBe(false);

    eager.open();
    await models.ready();

    expect(models.tree().ready).toBe(true);
    expect(models.info("lazy")?.status).toBe("registered");
    check.open();
  });

  it("is not touched by a lazy model with a bad file", async () => {
    const { models } = await startTestSupervisor({
      fake: { models: { a: {} } },
      models: [
        { id: "a", source: "a" },
        { id: "bad", source: "nowhere", loadPolicy: "lazy" },
      ],
    });

    await models.ready();
    await settle();

    expect(models.info("bad")?.status).toBe("error");
    expect(models.tree().ready).toBe(true);
  });

  it("waits for a warm-up", async () => {
    const backend = new FakeBackend();
    const warming = backend.hold("generate");
    const { models } = await startTestSupervisor({ backend, models: [{ id: "a", source: "a", warmUp: true }] });
    await warming.arrived();
    let isReady = false;
    const ready = models.ready().then(() => (isReady = true));
    await settle();
    expect([isReady, models.tree().ready, models.info("a")?.status]).toEqual([false, false, "loading"]);

    warming.open();
    await ready;

    expect(models.tree().ready).toBe(true);
  });

  it("stays when an eager model goes by its TTL: the next request loads it again", async () => {
    const { models, clock } = await startTestSupervisor({ models: [{ id: "a", source: "a", ttlMs: 1_000 }] });
    await models.ready();
    clock.increment(11_000);
    await settle();
    expect(models.info("a")?.status).toBe("registered");

    expect(models.tree().ready).toBe(true);
    await models.ready();
    expect((await models.generate("a", "hi")).modelId).toBe("a");
    expect(models.tree().ready).toBe(true);
  });

  it("ends when an eager model has failed", async () => {
    const { models, backend } = await startTestSupervisor({ models: [{ id: "a", source: "a" }] });
    await models.ready();

    backend.crash("a");
    await settle();

    expect(models.tree().ready).toBe(false);
    expect(await rejection(models.ready())).toBeInstanceOf(AggregateError);
  });
});

describe("close", () => {
  it("answers everyone who waits: for a load, for the next life, for a check", async () => {
    const { models, backend } = await startTestSupervisor();
    const loads = backend.hold("start", "loading");
    const disposals = backend.hold("dispose", "leaving");
    const checks = backend.hold("resolve", "checked");
    for (const id of ["loading", "leaving"]) await models.register(id, id);
    await models.generate("leaving", "hi");
    const unloading = models.unload("leaving");
    await disposals.arrived();
    const waiting = [
      rejection(models.generate("loading", "hi")),
      rejection(models.acquire("loading")),
      rejection(models.generate("leaving", "hi")),
      rejection(models.acquire("leaving")),
      rejection(models.register("checked", "checked")),
    ];
    await Promise.all([loads.arrived(), checks.arrived()]);

    const closing = models.close();
    // at once, whatever still has to be given back
    const answers = Promise.all(waiting.slice(0, 4));
    expect(await Promise.race([answers, settle().then(() => "not yet")])).not.toBe("not yet");
    disposals.open();
    await closing;
    await unloading;

    expect((await Promise.all(waiting)).map((error) => Object(error).code)).toEqual([
      "load_cancelled",
      "load_cancelled",
      "closed",
      "closed",
      "closed",
    ]);
    expect(await models.closed).toEqual({ reason: "closed", unreleased: [] });
    expect(backend.liveCopies).toBe(0);
  });

  it("never tells who waits for the eager models that they are ready", async () => {
    const { models, backend } = await startTestSupervisor({ models: [{ id: "a", source: "a" }] });
    const loads = backend.hold("start", "a");
    const waiting = rejection(models.ready());
    await loads.arrived();

    void models.close();

    expect(await waiting).toMatchObject({ code: "closed" });
  });
});

describe("register", () => {
  it("is answered when its model is loaded by a request and removed while the file is looked at", async () => {
    const { models, backend } = await startTestSupervisor();
    const check = backend.hold("resolve", "a", { ignoreAbort: true });
    const registered = rejection(models.register("a", "a"));
    await check.arrived();
    const request = rejection(models.generate("a", "hi"));
    await settle();
    const removed = models.remove("a");

    expect(await request).toMatchObject({ code: "load_cancelled" });
    expect(await registered).toMatchObject({ code: "load_cancelled" });
    check.open();
    await removed;
  });
});
