import { describe, expect, it } from "vitest";
import { FakeBackend } from "../../src/testing/index.js";
import { LoadFailedError, isModelSupervisorError } from "../../src/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const GB = 1e9;

describe("load", () => {
  it("claims the id at once and resolves when the model is ready", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start");

    const loading = models.load("a", "a.gguf");
    await gate.arrived();

    expect(models.info("a")).toMatchObject({ status: "loading", incarnation: 1, leases: 0 });
    expect(models.isLoaded("a")).toBe(false);
    gate.open();
    expect(await loading).toMatchObject({ id: "a", status: "ready", mode: "server", measured: true });
    expect(models.isLoaded("a")).toBe(true);
  });

  it("does not make another load wait for a slow one", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start", "slow.gguf");
    const slow = models.load("slow", "slow.gguf");
    await gate.arrived();

    await models.load("fast", "fast.gguf");

    expect(models.list().map(({ id, status }) => [id, status])).toEqual([
      ["slow", "loading"],
      ["fast", "ready"],
    ]);
    gate.open();
    await slow;
  });

  it("does not make unload, setDefault or ready of other models wait for a slow load", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("b", "b.gguf");
    const gate = backend.hold("start", "slow.gguf");
    const slow = models.load("slow", "slow.gguf");
    await gate.arrived();

    await models.setDefault("b");
    await models.ready();
    await models.unload("b");

    expect(models.info("slow")?.status).toBe("loading");
    gate.open();
    await slow;
  });

  it("refuses a second load of an id in every status that holds it", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start");
    const dispose = backend.hold("dispose");
    const first = models.load("a", "a.gguf");

    expect(await rejection(models.load("a", "a.gguf"))).toMatchObject({ code: "already_loaded", status: "loading" });
    gate.open();
    await first;
    expect(await rejection(models.load("a", "other.gguf"))).toMatchObject({ code: "already_loaded", status: "ready" });
    const unloading = models.unload("a");
    expect(await rejection(models.load("a", "a.gguf"))).toMatchObject({ code: "already_loaded", status: "unloading" });
    dispose.open();
    await unloading;

    expect(await models.load("a", "a.gguf")).toMatchObject({ status: "ready" });
  });

  it.each(["resolve", "estimate", "start"] as const)(
    "leaves nothing behind when the engine fails in %s",
    async (step) => {
      const { models, backend } = await startTestSupervisor({
        memoryBudget: 10 * GB,
        fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
      });
      const cause = new Error("engine says no");
      backend.fail(step, cause, undefined, 1);

      const error = await rejection(models.load("a", "a.gguf"));

      expect(error).toBeInstanceOf(LoadFailedError);
      expect(error).toMatchObject({ code: "load_failed", modelId: "a", phase: step, cause });
      expect(models.info("a")).toBeUndefined();
      expect(models.memory()).toMatchObject({ devices: [{ device: "total", reservedBytes: 0 }], unreleased: [] });
      expect(await models.load("a", "a.gguf")).toMatchObject({ status: "ready" });
    },
  );

  it("gives a backing back whose memory cannot be told", async () => {
    const { models, backend } = await startTestSupervisor();
    const start = backend.start.bind(backend);
    backend.start = async (spec, context) => {
      const backing = await start(spec, context);
      backing.memory = () => {
        throw new Error("no figures");
      };
      return backing;
    };

    const error = await rejection(models.load("a", "a.gguf"));

    expect(error).toMatchObject({ code: "load_failed", phase: "start" });
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(models.memory().unreleased).toEqual([]);
  });

  it("passes a typed error of the engine on as it is", async () => {
    const { models } = await startTestSupervisor({ fake: { models: {} } });

    expect(await rejection(models.load("a", "nowhere.gguf"))).toMatchObject({
      code: "source_unavailable",
      source: "nowhere.gguf",
    });
    expect(models.list()).toEqual([]);
  });

  it("refuses a capability that the file does not have", async () => {
    const { models } = await startTestSupervisor({ fake: { models: { "e.gguf": { supports: ["embed"] } } } });

    const error = await rejection(models.load("e", "e.gguf", { capabilities: ["chat"] }));

    expect(error).toMatchObject({ code: "unsupported_capability", capability: "chat" });
    expect(models.list()).toEqual([]);
    expect(await models.load("e", "e.gguf")).toMatchObject({ capabilities: ["embed"], mode: "direct" });
  });

  it.each([
    ["ramBytes", Number.NaN],
    ["gpuWeightsBytes", -1],
    ["ramBytes", Infinity],
    ["gpuContextBytes", 2 ** 60],
  ])("takes an estimate with %s = %d for a failure, never for a fit", async (field, bytes) => {
    const { models } = await startTestSupervisor({
      fake: { models: { "a.gguf": { [field]: bytes } }, gpuBytes: [GB] },
    });

    expect(await rejection(models.load("a", "a.gguf"))).toMatchObject({ code: "estimate_failed", source: "a.gguf" });
    expect(models.memory().devices.map((device) => device.reservedBytes)).toEqual([0, 0]);
  });

  it("gives the last bytes to exactly one of two racing loads", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB }, "b.gguf": { ramBytes: 6 * GB } } },
    });
    const gate = backend.hold("estimate");
    const loads = [models.load("a", "a.gguf"), models.load("b", "b.gguf")];
    await gate.arrived(2);

    gate.open();
    const results = await Promise.allSettled(loads);

    expect(results.map((result) => result.status).toSorted()).toEqual(["fulfilled", "rejected"]);
    const refused = results.find((result) => result.status === "rejected");
    expect(refused?.reason).toMatchObject({
      code: "insufficient_memory",
      device: "total",
      requiredBytes: 6 * GB,
      availableBytes: 4 * GB,
    });
    expect(models.memory().devices[0]).toMatchObject({ reservedBytes: 6 * GB, availableBytes: 4 * GB });
    expect(backend.liveCopies).toBe(1);
  });

  it("replaces the estimate by what the engine reports", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 5 * GB, measured: { ramBytes: 7 * GB } } } },
    });

    const info = await models.load("a", "a.gguf");

    expect(info).toMatchObject({ placement: { ram: 7 * GB }, measured: true });
    expect(models.memory().devices[0]).toMatchObject({ reservedBytes: 7 * GB, measuredBytes: 7 * GB });
  });

  it("reports progress phase by phase, and survives a listener that throws", async () => {
    const { models, warnings } = await startTestSupervisor();
    const phases: string[] = [];

    await models.load("a", "a.gguf", {
      onProgress: ({ phase, fraction }) => {
        phases.push(`${phase} ${fraction}`);
        throw new Error("broken listener");
      },
    });

    expect(phases).toEqual(["resolve 0", "estimate 0", "start 0", "start 1"]);
    expect(warnings).toHaveLength(4);
    expect(models.isLoaded("a")).toBe(true);
  });
});

describe("cancelling a load", () => {
  it("rejects the load with load_cancelled when the model is unloaded meanwhile, and the model never comes back", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start", undefined, { ignoreAbort: true });
    const loading = rejection(models.load("a", "a.gguf"));
    await gate.arrived();

    const unloading = models.unload("a");
    expect(await loading).toMatchObject({ code: "load_cancelled", modelId: "a" });
    expect(models.info("a")).toBeUndefined();
    gate.open();
    await unloading;
    await settle();

    expect(models.list()).toEqual([]);
    expect(models.memory().unreleased).toEqual([]);
    expect(backend.liveCopies).toBe(0);
  });

  it("resolves the unload only when the memory of the cancelled load is free", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    const gate = backend.hold("start", undefined, { ignoreAbort: true });
    const loading = rejection(models.load("a", "a.gguf"));
    await gate.arrived();
    let unloaded = false;

    const unloading = models.unload("a").then(() => (unloaded = true));
    await loading;
    await settle();

    expect(unloaded).toBe(false);
    expect(models.memory()).toMatchObject({
      devices: [{ reservedBytes: 6 * GB }],
      unreleased: [{ modelId: "a", placement: { ram: 6 * GB } }],
    });
    gate.open();
    await unloading;
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
  });

  it("says so when the engine does not hear of it, and the memory is free when it does", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    const gate = backend.hold("start", undefined, { ignoreAbort: true });
    const loading = rejection(models.load("a", "a.gguf"));
    await gate.arrived();

    const unloading = rejection(models.unload("a"));
    await loading;
    clock.increment(30_000);

    expect(await unloading).toMatchObject({ code: "dispose_failed", modelId: "a" });
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 6 * GB }], unreleased: [{ modelId: "a" }] });
    gate.open();
    await settle();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect(models.list()).toEqual([]);
  });

  it("lets the id be loaded again at once, as another incarnation", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start", "old.gguf", { ignoreAbort: true });
    const old = rejection(models.load("a", "old.gguf"));
    await gate.arrived();
    const unloading = models.unload("a");
    await old;

    const info = await models.load("a", "new.gguf");
    gate.open();
    await unloading;

    expect(info).toMatchObject({ source: "new.gguf", status: "ready" });
    expect(models.info("a")).toMatchObject({ incarnation: info.incarnation, status: "ready" });
    expect(backend.liveCopies).toBe(1);
  });

  it("rejects with the signal's reason, unwrapped, and gives everything back", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    const gate = backend.hold("start");
    const controller = new AbortController();
    const loading = rejection(models.load("a", "a.gguf", { signal: controller.signal }));
    await gate.arrived();
    const reason = new Error("user went away");

    controller.abort(reason);

    expect(await loading).toBe(reason);
    expect(models.list()).toEqual([]);
    await settle();
    expect(models.memory().devices[0]).toMatchObject({ reservedBytes: 0 });
    gate.open();
    expect(await models.load("a", "a.gguf")).toMatchObject({ status: "ready" });
  });

  it("does nothing for a signal that has been aborted before", async () => {
    const { models, backend } = await startTestSupervisor();
    const reason = new Error("too late");

    expect(await rejection(models.load("a", "a.gguf", { signal: AbortSignal.abort(reason) }))).toBe(reason);
    expect(models.list()).toEqual([]);
    expect(backend.log).toEqual([]);
  });

  it("ignores a signal that is aborted after the load", async () => {
    const { models } = await startTestSupervisor();
    const controller = new AbortController();
    await models.load("a", "a.gguf", { signal: controller.signal });

    controller.abort();
    await settle();

    expect(models.isLoaded("a")).toBe(true);
  });

  it("returns a declared model to registered", async () => {
    const backend = new FakeBackend();
    const gate = backend.hold("start");
    const { models } = await startTestSupervisor({ backend, models: [{ id: "a", source: "a.gguf" }] });
    await gate.arrived();

    await models.unload("a");

    expect(models.info("a")).toMatchObject({ status: "registered", declared: true });
    gate.open();
    expect(await models.load("a")).toMatchObject({ status: "ready" });
  });
});

describe("unload", () => {
  it("waits for requests in flight, admits no new ones, and disposes only then", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = models.generate("a", "hi");
    await gate.arrived();

    const unloading = models.unload("a");

    expect(models.info("a")).toMatchObject({ status: "unloading", leases: 1 });
    expect(await rejection(models.generate("a", "late"))).toMatchObject({ code: "not_ready", status: "unloading" });
    expect(backend.log).toEqual(["start a"]);
    gate.open();
    expect((await running).text).toMatch(/^one/);
    await unloading;
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(models.list()).toEqual([]);
  });

  it("puts the model back when requests outlast timeoutMs without force", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = models.generate("a", "hi");
    await gate.arrived();

    const unloading = rejection(models.unload("a", { timeoutMs: 100 }));
    clock.increment(99);
    expect(models.info("a")?.status).toBe("unloading");
    clock.increment(1);

    expect(await unloading).toMatchObject({ code: "unload_timeout", modelId: "a", leases: 1 });
    expect(models.info("a")?.status).toBe("ready");
    gate.open();
    await running;
    expect((await models.generate("a", "again")).text).toMatch(/^one/);
  });

  it("can be asked for again at once after it was put back", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = models.generate("a", "hi");
    await gate.arrived();

    const first = rejection(models.unload("a", { timeoutMs: 0 }));
    expect(await first).toMatchObject({ code: "unload_timeout" });
    const second = models.unload("a");
    gate.open();
    await Promise.all([running, second]);

    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("aborts what is left with force, and disposes when the engine is quiet", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await settle();

    const unloading = models.unload("a", { timeoutMs: 50, force: true });
    clock.increment(50);

    expect(await running).toMatchObject({ code: "request_aborted", modelId: "a", retryable: true });
    await unloading;
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(backend.disposalsInFlight).toBe(0);
  });

  it("is hastened by a second one with force; both resolve", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await settle();

    const patient = models.unload("a");
    const urgent = models.unload("a", { force: true });

    await Promise.all([patient, urgent]);
    expect(await running).toMatchObject({ code: "request_aborted" });
    expect(models.list()).toEqual([]);
  });

  it("answers the caller at once when a request ignores its abort, keeps the memory and says so", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate", undefined, { ignoreAbort: true });
    const running = rejection(models.generate("a", "hi"));
    await gate.arrived();

    const unloading = rejection(models.unload("a", { force: true }));
    expect(await running).toMatchObject({ code: "request_aborted" });
    await settle();
    clock.increment(30_000);

    expect(await unloading).toMatchObject({ code: "dispose_failed", modelId: "a" });
    expect(models.info("a")).toMatchObject({ status: "error", error: { code: "dispose_failed" } });
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 6 * GB }], unreleased: [{ modelId: "a" }] });
    expect(backend.log).toEqual(["start a"]);

    gate.open(); // it ends after all: the disposal goes on from there
    await settle();
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(backend.disposalsInFlight).toBe(0);
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
  });

  it("turns to error with the bytes reserved when the disposal fails", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    await models.load("a", "a.gguf");
    backend.fail("dispose", new Error("native trouble"));

    const error = await rejection(models.unload("a"));

    expect(error).toMatchObject({ code: "dispose_failed" });
    expect(models.info("a")?.status).toBe("error");
    expect(models.memory()).toMatchObject({
      devices: [{ reservedBytes: 6 * GB }],
      unreleased: [{ modelId: "a", incarnation: 1 }],
    });
    // the other model of that size does not fit beside it: the books are right
    expect(await rejection(models.load("b", "a.gguf"))).toMatchObject({
      code: "insufficient_memory",
      availableBytes: 4 * GB,
    });
  });

  it("turns to error when the disposal hangs past its deadline, and frees the bytes if it ends", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    await models.load("a", "a.gguf");
    const gate = backend.hold("dispose");

    const unloading = rejection(models.unload("a"));
    await gate.arrived();
    clock.increment(30_000);

    expect(await unloading).toMatchObject({ code: "dispose_failed" });
    expect(models.memory().devices[0]?.reservedBytes).toBe(6 * GB);
    gate.open();
    await settle();
    expect(models.memory().devices[0]?.reservedBytes).toBe(0);
    expect(models.info("a")?.status).toBe("error");
  });

  it("refuses an id that is not there and clears one that is in error", async () => {
    const { models, backend } = await startTestSupervisor();
    expect(await rejection(models.unload("nope"))).toMatchObject({ code: "not_loaded", modelId: "nope" });
    await models.load("a", "a.gguf");
    backend.crash("a");
    await settle();
    expect(models.info("a")?.status).toBe("error");

    await models.unload("a");

    expect(models.list()).toEqual([]);
  });
});

describe("a crash of a backing", () => {
  it("turns the entry to error with the cause, rejects what is in flight, and touches no other model", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    await models.load("b", "b.gguf");
    const gate = backend.hold("generate");
    const lost = rejection(models.generate("a", "hi"));
    const kept = models.generate("b", "hi");
    await gate.arrived(2);
    const cause = new Error("segfault");

    backend.crash("a", { cause, exitCode: 139 });

    expect(await lost).toMatchObject({ code: "backing_crashed", modelId: "a", incarnation: 1, exitCode: 139, cause });
    await settle();
    expect(models.info("a")).toMatchObject({ status: "error", error: { code: "backing_crashed" }, leases: 0 });
    expect(await rejection(models.generate("a", "hi"))).toMatchObject({
      code: "not_ready",
      status: "error",
      cause: { code: "backing_crashed" },
    });
    gate.open();
    expect((await kept).text).toMatch(/^one/);
  });

  it("gives the reservation back only when what is left has been disposed", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    await models.load("a", "a.gguf");
    const gate = backend.hold("dispose");

    backend.crash("a");
    await gate.arrived();

    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 6 * GB }], unreleased: [{ modelId: "a" }] });
    gate.open();
    await settle();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
  });

  it("can be followed by a load of the same id, with or without a source", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf", { contextSize: 128 });
    backend.crash("a");
    await settle();

    expect(await models.load("a")).toMatchObject({ status: "ready", source: "a.gguf", contextSize: 128 });
    backend.crash("a");
    await settle();
    expect(await models.load("a", "b.gguf")).toMatchObject({ status: "ready", source: "b.gguf", contextSize: 4096 });
  });

  it("during an unload ends the requests, and the unload still resolves", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await gate.arrived();
    const unloading = models.unload("a");

    backend.crash("a");

    expect(await running).toMatchObject({ code: "backing_crashed" });
    await unloading;
    expect(models.list()).toEqual([]);
  });
});

describe("declared models", () => {
  it("are visible as loading when start resolves, and load side by side", async () => {
    const backend = new FakeBackend();
    const gate = backend.hold("start");
    const { models } = await startTestSupervisor({
      backend,
      models: [
        { id: "a", source: "a.gguf", default: true },
        { id: "b", source: "b.gguf" },
      ],
    });

    expect(models.list().map(({ id, status, declared }) => [id, status, declared])).toEqual([
      ["a", "loading", true],
      ["b", "loading", true],
    ]);
    await gate.arrived(2);
    gate.open();
    await models.ready();
    expect(models.defaultId()).toBe("a");
    expect((await models.generate("@default", "hi")).modelId).toBe("a");
  });

  it("stay known in error when their load fails; ready() says which and why", async () => {
    const { models } = await startTestSupervisor({
      fake: { models: { "a.gguf": {} } },
      models: [
        { id: "a", source: "a.gguf" },
        { id: "b", source: "missing.gguf" },
      ],
    });

    const error = await rejection(models.ready());

    expect(error).toBeInstanceOf(AggregateError);
    expect(error).toMatchObject({ errors: [{ code: "source_unavailable" }] });
    expect(String(error)).toContain('"b"');
    expect(models.info("b")).toMatchObject({ status: "error", error: { code: "source_unavailable" }, declared: true });
    expect(models.isLoaded("a")).toBe(true);
  });

  it("return to registered on unload, load again by id alone, and are forgotten by remove", async () => {
    const { models } = await startTestSupervisor({ models: [{ id: "a", source: "a.gguf", contextSize: 256 }] });
    await models.ready();

    await models.unload("a");
    expect(models.info("a")).toMatchObject({ status: "registered" });
    expect(await rejection(models.load("a", "other.gguf"))).toMatchObject({
      code: "already_loaded",
      status: "registered",
    });
    expect(await models.load("a")).toMatchObject({ status: "ready", contextSize: 256 });
    await models.remove("a");

    expect(models.list()).toEqual([]);
    expect(await rejection(models.load("a"))).toMatchObject({ code: "not_loaded" });
  });

  it("stay known when remove cannot unload them in time", async () => {
    const { models, backend } = await startTestSupervisor({ models: [{ id: "a", source: "a.gguf" }] });
    await models.ready();
    const gate = backend.hold("generate");
    const running = models.generate("a", "hi");
    await gate.arrived();

    expect(await rejection(models.remove("a", { timeoutMs: 0 }))).toMatchObject({ code: "unload_timeout" });

    expect(models.info("a")).toMatchObject({ status: "ready", declared: true });
    gate.open();
    await running;
  });

  it("ready() gives up with its signal's reason or at its time-out", async () => {
    const backend = new FakeBackend();
    const gate = backend.hold("start");
    const { models, clock } = await startTestSupervisor({ backend, models: [{ id: "a", source: "a.gguf" }] });
    const controller = new AbortController();
    const reason = new Error("not today");

    const aborted = rejection(models.ready({ signal: controller.signal }));
    const timedOut = rejection(models.ready({ timeoutMs: 10 }));
    const waiting = models.ready();
    controller.abort(reason);
    clock.increment(10);

    expect(await aborted).toBe(reason);
    expect(await timedOut).toMatchObject({ code: "request_timeout", phase: "load" });
    gate.open();
    await waiting;
  });
});

describe("events", () => {
  it("tell the life of a model in order, and a throwing listener harms nobody", async () => {
    const { models, backend, warnings } = await startTestSupervisor();
    const seen: string[] = [];
    models.on("model:loading", () => {
      throw new Error("broken listener");
    });
    for (const name of ["model:loading", "model:ready", "model:unloading", "model:unloaded", "model:error"] as const) {
      models.on(name, ({ modelId }: { modelId: string }) => void seen.push(`${name} ${modelId}`));
    }

    await models.load("a", "a.gguf");
    await models.unload("a");
    await models.load("b", "b.gguf");
    backend.crash("b");
    await settle();

    expect(seen).toEqual([
      "model:loading a",
      "model:ready a",
      "model:unloading a",
      "model:unloaded a",
      "model:loading b",
      "model:ready b",
      "model:error b",
    ]);
    expect(warnings).toEqual(Array.from({ length: 2 }, () => 'A listener of "model:loading" threw.'));
  });

  it("may be answered by calls on the manager itself", async () => {
    const { models } = await startTestSupervisor();
    const unloaded = new Promise<void>((resolve, reject) => {
      models.once("model:ready", ({ modelId }) => void models.unload(modelId).then(resolve, reject));
    });

    await models.load("a", "a.gguf");
    await unloaded;

    expect(models.list()).toEqual([]);
  });
});

describe("typed errors", () => {
  it("carry code, retryable and their fields as plain JSON, across copies of the library", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 10,
      fake: { models: { "a.gguf": { ramBytes: 11 } } },
    });

    const error = await rejection(models.load("a", "a.gguf"));

    expect(isModelSupervisorError(error)).toBe(true);
    expect(isModelSupervisorError(error, "insufficient_memory")).toBe(true);
    expect(isModelSupervisorError(error, "queue_full")).toBe(false);
    expect(isModelSupervisorError(new Error("no"))).toBe(false);
    const text = JSON.stringify(error);
    expect(JSON.parse(text)).toEqual({
      name: "InsufficientMemoryError",
      code: "insufficient_memory",
      message: expect.stringMatching(/"a" needs 11 bytes on device "total".*10 bytes are available/),
      retryable: false,
      modelId: "a",
      device: "total",
      requiredBytes: 11,
      availableBytes: 10,
      evictableBytes: 0,
    });
  });
});

describe("a load by hand", () => {
  it("waits until what is left of the last life is given back, and needs no room for both", async () => {
    const progress: string[] = [];
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10,
      fake: { models: { a: { ramBytes: 6 } } },
      models: [{ id: "a", source: "a" }],
    });
    await models.ready();
    const disposal = backend.hold("dispose");
    backend.crash("a");
    await disposal.arrived();

    const loading = models.load("a", undefined, { onProgress: ({ phase }) => void progress.push(phase) });
    await settle();
    expect(backend.log).toEqual(["start a"]);
    disposal.open();

    expect(await loading).toMatchObject({ status: "ready" });
    expect(backend.maxLiveCopies).toBe(1);
    expect(progress).toContain("start");
  });

  it("takes the new source of a model that was not declared, and makes it the default", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "old");
    const disposal = backend.hold("dispose");
    backend.crash("a");
    await disposal.arrived();

    const loading = models.load("a", "new", { default: true });
    disposal.open();

    expect(await loading).toMatchObject({ source: "new", status: "ready" });
    expect(models.defaultId()).toBe("a");
  });

  it("is not begun for somebody who has left meanwhile", async () => {
    const { models, backend } = await startTestSupervisor({ models: [{ id: "a", source: "a" }] });
    await models.ready();
    const disposal = backend.hold("dispose");
    backend.crash("a");
    await disposal.arrived();
    const leave = new AbortController();
    const loading = rejection(models.load("a", undefined, { signal: leave.signal }));
    leave.abort(new DOMException("left", "AbortError"));
    await loading;
    disposal.open();
    await settle();

    expect(backend.log).toEqual(["start a", "dispose a"]);
  });
});
