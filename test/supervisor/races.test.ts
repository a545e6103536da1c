import { describe, expect, it } from "vitest";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** What two parts of the tree tell each other takes a few microtasks; each of these is the moment for something else. */
const GAPS = Array.from({ length: 30 }, (_, gap) => gap);

async function microtasks(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await Promise.resolve();
}

/** An unload that waits for a request, and gives up when 10 ms have passed. */
async function patientUnload() {
  const started = await startTestSupervisor();
  const { models, backend } = started;
  await models.load("a", "a.gguf");
  const gate = backend.hold("generate");
  const running = rejection(models.generate("a", "hi"));
  await gate.arrived();
  const patient = models.unload("a", { timeoutMs: 10 }).catch((error: unknown) => error);
  await settle();
  return { ...started, running, patient };
}

describe("in whatever moment it comes", () => {
  it.each(GAPS)("an unload of a model whose load has just ended frees it (%d microtasks later)", async (gap) => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start");
    const loading = models.load("a", "a.gguf").catch((error: unknown) => error);
    await gate.arrived();
    gate.open();
    await microtasks(gap);

    await models.unload("a");
    await loading;

    expect(models.list()).toEqual([]);
    expect(models.memory().unreleased).toEqual([]);
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("a close while a load ends leaves nothing (%d microtasks later)", async (gap) => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start");
    const loading = models.load("a", "a.gguf").catch((error: unknown) => error);
    await gate.arrived();
    gate.open();
    await microtasks(gap);

    await models.close();
    await loading;

    expect(await models.closed).toEqual({ reason: "closed", unreleased: [] });
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("force takes a model that a patient unload has just given up (%d microtasks later)", async (gap) => {
    const { models, backend, clock, running, patient } = await patientUnload();
    clock.increment(10);
    await microtasks(gap);

    await models.unload("a", { force: true });
    await patient;

    expect(await running).toMatchObject({ code: "request_aborted" });
    expect(models.list()).toEqual([]);
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("a close takes it as well (%d microtasks later)", async (gap) => {
    const { models, backend, clock, running, patient } = await patientUnload();
    clock.increment(10);
    await microtasks(gap);

    await models.close({ timeoutMs: 0 });
    await patient;

    expect(await running).toMatchObject({ code: "request_aborted" });
    expect(await models.closed).toEqual({ reason: "closed", unreleased: [] });
    expect(backend.liveCopies).toBe(0);
  });

  it.each(GAPS)("a crash in a patient unload never makes the model ready again (%d microtasks later)", async (gap) => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const lease = await models.acquire("a");
    void lease.native; // so that only the release ends it
    const unloading = models.unload("a", { timeoutMs: 10 }).catch((error: unknown) => error);
    await settle();
    backend.crash("a");
    await microtasks(gap);
    clock.increment(10);
    await settle();

    expect(models.isLoaded("a")).toBe(false);
    lease.release();
    await unloading;
    await settle();
    expect(models.isLoaded("a")).toBe(false);
    expect(backend.liveCopies).toBe(0);
  });
});

describe("an explicit lease", () => {
  it.each(["unload", "close"] as const)("that nobody uses is ended by a forced %s at once", async (how) => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const lease = await models.acquire("a");

    if (how === "unload") await models.unload("a", { force: true });
    else await models.close({ timeoutMs: 0 });

    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(await rejection(lease.generate("hi"))).toMatchObject({ code: "request_aborted" });
    expect(() => lease.release()).not.toThrow();
  });

  it("is ended by a crash, with the crash as the reason", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const lease = await models.acquire("a");

    backend.crash("a");
    await settle();

    expect(await rejection(lease.generate("hi"))).toMatchObject({ code: "backing_crashed" });
    expect(models.memory().unreleased).toEqual([]);
  });

  it("whose native object was taken keeps the memory until its release, and says so; calls are refused", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const lease = await models.acquire("a");
    void lease.native;

    const unloading = rejection(models.unload("a", { force: true }));
    await settle();
    expect(await rejection(lease.generate("hi"))).toMatchObject({ code: "request_aborted" });
    clock.increment(30_000);

    expect(await unloading).toMatchObject({ code: "dispose_failed", detail: expect.stringContaining("native object") });
    expect(backend.log).toEqual(["start a"]);
    expect(models.info("a")).toMatchObject({ status: "error", leases: 1 });
    lease.release();
    await settle();
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(models.memory().unreleased).toEqual([]);
  });
});

describe("a backing that breaks the port", () => {
  it.each([
    ["rejects with nothing", () => Promise.reject<never>(undefined)],
    ["rejects with an odd error", () => Promise.reject<never>(Object.assign(new Error(), { message: 7 }))],
    ["says nothing", () => Promise.resolve(undefined as never)],
  ])("in exited (%s) counts as crashed, and harms nobody else", async (_, exited) => {
    const { models, backend } = await startTestSupervisor();
    await models.load("kept", "b.gguf");
    const start = backend.start.bind(backend);
    backend.start = async (spec, context) => {
      const backing = await start(spec, context);
      Object.defineProperty(backing, "exited", { value: exited() });
      backing.queued = () => {
        throw new Error("no idea");
      };
      return backing;
    };

    await models.load("a", "a.gguf").catch(() => undefined);
    await settle();

    expect(models.info("a")).toMatchObject({ status: "error", error: { code: "backing_crashed" } });
    expect((await models.generate("kept", "hi")).text).toMatch(/^one/);
    expect(models.tree().restarts).toBe(0);
  });

  it("with figures that are no numbers is refused and given back", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 100,
      fake: { models: { "a.gguf": { ramBytes: 1, measured: { ramBytes: Number.NaN } } } },
    });

    expect(await rejection(models.load("a", "a.gguf"))).toMatchObject({ code: "estimate_failed" });
    expect(backend.liveCopies).toBe(0);
    expect(models.memory().devices[0]?.reservedBytes).toBe(0);
  });
});

describe("what callers pass in", () => {
  it.each([[Symbol("a")], [{ toString: () => "a" }], [undefined], [7]])(
    "as an id (%s) is refused everywhere and harms nobody",
    async (id) => {
      const { models } = await startTestSupervisor();
      await models.load("a", "a.gguf");
      const calls = [models.unload, models.remove, models.setDefault, models.load].map((call) =>
        Reflect.apply(call, models, [id]),
      );

      for (const call of calls) expect(await rejection(call)).toMatchObject({ code: "invalid_option", option: "id" });

      expect(models.isLoaded("a")).toBe(true);
      expect(models.tree().restarts).toBe(0);
    },
  );

  it("as an async listener that rejects is told to the logger", async () => {
    const { models, warnings } = await startTestSupervisor();
    // the type says that nothing is returned; what is nevertheless must not be lost
    models.on("model:ready", () => Promise.reject(new Error("late")) as unknown as void);

    await models.load("a", "a.gguf");
    await settle();

    expect(warnings).toEqual(['A listener of "model:ready" threw.']);
  });

  it("cannot change the books through what reads return", async () => {
    const { models } = await startTestSupervisor({ memoryBudget: 10, fake: { models: { "a.gguf": { ramBytes: 6 } } } });
    const info = await models.load("a", "a.gguf");

    expect(() => Object.assign(info.placement, { ram: 0 })).toThrow(TypeError);
    expect(() => Reflect.apply(Array.prototype.push, info.capabilities, ["embed"])).toThrow(TypeError);

    expect(models.memory().devices[0]).toMatchObject({ reservedBytes: 6, availableBytes: 4 });
  });
});

describe("memory() under an automatic budget", () => {
  it("tells what is free after a load, and after an unload", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: "auto",
      fake: { ramBytes: 100, models: { "a.gguf": { ramBytes: 30 } } },
    });
    const free = (freeBytes: number) => {
      backend.deviceList = [{ device: "ram", name: "RAM", totalBytes: 100, freeBytes }];
    };
    const gate = backend.hold("start");
    free(50);
    const loading = models.load("a", "a.gguf");
    await gate.arrived();
    free(20); // the load has taken its 30
    gate.open();
    await loading;
    expect(models.memory().devices[0]?.availableBytes).toBe(20);

    free(50);
    await models.unload("a");

    expect(models.memory().devices[0]?.availableBytes).toBe(50);
  });
});
