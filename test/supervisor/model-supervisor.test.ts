import { describe, expect, it, vi } from "vitest";
import { ModelSupervisor, SupervisorExhaustedError } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { FakeBackend } from "../../src/testing/index.js";
import { breakManagerOnce, rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const GB = 1e9;

describe("ModelSupervisor.start and get", () => {
  it("refuse a second start under one name, also while the first is under way; other names live side by side", async () => {
    const backend = new FakeBackend();
    const first = ModelSupervisor.start({ name: "one", backend });

    expect(await rejection(ModelSupervisor.start({ name: "one", backend }))).toMatchObject({
      code: "already_started",
      supervisor: "one",
    });
    const models = await first;
    expect(await rejection(ModelSupervisor.start({ name: "one", backend }))).toMatchObject({ code: "already_started" });
    const other = await ModelSupervisor.start({ name: "two", backend });

    expect(ModelSupervisor.get("one")).toBe(models);
    expect(ModelSupervisor.get("two")).toBe(other);
    await models.load("a", "a.gguf");
    expect(other.list()).toEqual([]);
    await Promise.all([models.close(), other.close()]);
    expect(() => ModelSupervisor.get("one")).toThrow(
      expect.objectContaining({ code: "not_started", supervisor: "one" }),
    );
    const again = await ModelSupervisor.start({ name: "one", backend });
    await again.close();
  });

  it("pass on that the devices cannot be told, and leave the name free", async () => {
    const backend = new FakeBackend();
    const failure = new Error("no driver");
    backend.deviceList = failure;

    expect(await rejection(ModelSupervisor.start({ name: "devices", backend }))).toBe(failure);

    backend.deviceList = [];
    await (await ModelSupervisor.start({ name: "devices", backend })).close();
  });

  it.each([
    [{ memoryBudgett: 1 }, "memoryBudgett", /did you mean "memoryBudget"/],
    [{ memoryBudget: "lots" }, "memoryBudget", /"unlimited", "auto", "edge"/],
    [{ memoryBudget: { gpu: ["8 bananas"] } }, "memoryBudget", /a size/],
    [{ maxThreads: 0 }, "maxThreads", /from 1 to 1024/],
    [
      {
        models: [
          { id: "a", source: "a" },
          { id: "a", source: "b" },
        ],
      },
      "models",
      /each id once/,
    ],
    [{ models: [{ id: "a", source: "a", contextsize: 1 }] }, "models.0.contextsize", /did you mean "contextSize"/],
    [{ models: [{ id: "@a", source: "a" }] }, "models.0.id", /not starting with @/],
    [{ backend: {} }, "backend", /a Backend/],
  ])("refuse %j before anything is started", async (options, option, expected) => {
    const start = ModelSupervisor.start as (options: unknown) => Promise<unknown>;

    expect(await rejection(start({ name: "bad", ...options }))).toMatchObject({
      code: "invalid_option",
      option,
      expected: expect.stringMatching(expected),
    });
    expect(() => ModelSupervisor.get("bad")).toThrow();
  });

  it("hand maxThreads to the engine; the default leaves one CPU to the event loop", async () => {
    const { models, backend } = await startTestSupervisor({ maxThreads: 3 });

    await models.load("a", "a.gguf");

    expect(backend.lastStart?.maxThreads).toBe(3);
  });
});

describe("close", () => {
  it("waits for requests with the longest time that is allowed, for which no timer is long enough", async () => {
    const backend = new FakeBackend();
    const models = await ModelSupervisor.start({ name: "longest", memoryBudget: "unlimited", backend });
    await models.load("a", "a");
    const gate = backend.hold("generate", "a");
    const request = models.generate("a", "hi");
    await gate.arrived();
    const closed = models.close({ timeoutMs: 2 ** 31 - 1 });
    // a timer that overflows ends after a millisecond
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(models.info("a")?.status).toBe("unloading");
    gate.open();

    await Promise.all([request, closed]);
  });
});

describe("tree", () => {
  it("is not ready any more once the supervisor is closing or has ended", async () => {
    const { models } = await startTestSupervisor({ models: [{ id: "a", source: "a" }] });
    await models.ready();
    expect(models.tree().ready).toBe(true);

    const closed = models.close();
    expect(models.tree().ready).toBe(false);
    await closed;
    expect(models.tree().ready).toBe(false);
  });

  it("says what ready() says of a model that was unloaded by hand", async () => {
    const { models } = await startTestSupervisor({ models: [{ id: "a", source: "a" }] });
    await models.ready();
    await models.unload("a");

    await models.ready();
    expect(models.tree().ready).toBe(true);
  });

  it("tells the logger of a declared model that is no good, which nobody has asked for yet", async () => {
    const backend = new FakeBackend();
    backend.fail("resolve", new Error("no such file"));
    const { models, warnings } = await startTestSupervisor({
      backend,
      models: [
        { id: "eager", source: "a" },
        { id: "lazy", source: "b", loadPolicy: "lazy" },
      ],
    });
    const failure = await rejection(models.ready());
    await settle();

    expect(warnings.toSorted()).toEqual([
      'Declared model "eager" cannot be loaded.',
      'Declared model "lazy" cannot be loaded.',
    ]);
    expect(String(failure)).toContain('"eager" (Loading model "eager" failed in phase "resolve": no such file.)');
    await rejection(models.register("called", "c"));
    expect(warnings).toHaveLength(2);
  });

  it("shows the supervisors with their strategies, and a worker for each live backing and task", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("start");
    const loading = models.load("b", "b.gguf");
    await gate.arrived();

    expect(models.tree()).toEqual({
      id: models.name,
      kind: "supervisor",
      strategy: "rest_for_one",
      restarts: 0,
      ready: true,
      children: [
        {
          id: "backings",
          kind: "supervisor",
          strategy: "one_for_one",
          children: [{ id: "backing:a#1", kind: "worker", children: [] }],
        },
        { id: "manager", kind: "worker", children: [] },
        {
          id: "loads",
          kind: "supervisor",
          strategy: "one_for_one",
          children: [{ id: "load:b#2", kind: "worker", children: [] }],
        },
      ],
    });
    gate.open();
    await loading;
    await models.unload("a");
    expect(JSON.stringify(models.tree())).not.toContain("a#1");
    expect(models.tree().children[2]?.children).toEqual([]);
  });
});

describe("a crash of the manager", () => {
  it("stops backings without an owner, declares the declared models again and loads them; the others are lost, with an event each", async () => {
    const { models, backend, warnings } = await startTestSupervisor({
      models: [{ id: "a", source: "a.gguf", default: true }],
    });
    await models.load("b", "b.gguf");
    await models.ready();
    const gate = backend.hold("generate");
    const running = rejection(models.generate("b", "hi"));
    await gate.arrived();
    const lost: string[] = [];
    models.on("model:lost", ({ modelId }) => void lost.push(modelId));
    breakManagerOnce();

    const broken = rejection(models.setDefault("b"));

    expect(await broken).toMatchObject({ code: "request_aborted", reason: "the manager was restarted" });
    expect(await running).toMatchObject({ code: "request_aborted", modelId: "b" });
    await models.ready();
    expect(lost).toEqual(["b"]);
    expect(models.list().map(({ id, status }) => [id, status])).toEqual([["a", "ready"]]);
    expect(models.defaultId()).toBe("a");
    expect(backend.liveCopies).toBe(1);
    expect(backend.disposalsInFlight).toBe(0);
    expect(models.tree().restarts).toBe(1);
    expect(warnings).toEqual([expect.stringContaining('"manager"')]);
    gate.open();
    expect((await models.generate("a", "hi")).text).toMatch(/^one/);
  });

  it("aborts half-done loads, which give back what they took", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
    });
    const gate = backend.hold("start", undefined, { ignoreAbort: true });
    const loading = rejection(models.load("a", "a.gguf"));
    await gate.arrived();
    breakManagerOnce();

    await rejection(models.setDefault("a"));

    expect(await loading).toMatchObject({ code: "request_aborted", modelId: "a" });
    expect(models.list()).toEqual([]);
    expect(models.memory().devices[0]?.reservedBytes).toBe(6 * GB); // the native load still runs
    gate.open();
    await settle();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect(backend.liveCopies).toBe(0);
  });

  it("loads the declared models again only when the memory of their earlier lives is free", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 6 * GB } } },
      models: [{ id: "a", source: "a.gguf" }],
    });
    await models.ready();
    const gate = backend.hold("dispose");
    breakManagerOnce();

    await rejection(models.setDefault("a"));
    await gate.arrived();
    expect(models.info("a")).toMatchObject({ status: "registered" });
    const ready = models.ready();
    gate.open();
    await ready;

    expect(models.info("a")?.status).toBe("ready");
    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
    expect(models.memory().devices[0]?.reservedBytes).toBe(6 * GB);
  });

  it("during an unload lets the new manager finish it", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("dispose");
    const unloading = rejection(models.unload("a"));
    await gate.arrived();
    breakManagerOnce();

    await rejection(models.setDefault("a"));

    expect(await unloading).toMatchObject({ code: "request_aborted" });
    gate.open();
    await settle();
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(models.memory().unreleased).toEqual([]);
    expect(models.tree().children[2]?.children).toEqual([]);
  });

  it("more often than allowed ends the tree with supervisor_exhausted, and everything is given back", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await gate.arrived();
    vi.spyOn(Executor.prototype, "handle").mockImplementation(() => {
      throw new Error("a bug that stays");
    });

    for (let time = 0; time < 3; time++) {
      expect(await rejection(models.setDefault("a"))).toMatchObject({ code: "request_aborted" });
    }
    const last = await rejection(models.setDefault("a"));
    vi.restoreAllMocks();

    expect(last).toBeInstanceOf(SupervisorExhaustedError);
    expect(last).toMatchObject({ code: "supervisor_exhausted", child: "manager" });
    expect(await running).toMatchObject({ code: "request_aborted" });
    expect(await models.closed).toMatchObject({
      reason: "exhausted",
      error: { code: "supervisor_exhausted" },
      unreleased: [],
    });
    expect(backend.liveCopies).toBe(0);
    expect(await rejection(models.generate("a", "hi"))).toMatchObject({ code: "supervisor_exhausted" });
    expect(await rejection(models.load("b", "b.gguf"))).toMatchObject({ code: "supervisor_exhausted" });
    expect(() => ModelSupervisor.get(models.name)).toThrow(expect.objectContaining({ code: "not_started" }));
    await models.close();
  });
});

describe("close", () => {
  it("refuses new work at once, lets what is in flight finish, then disposes everything", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    await models.load("b", "b.gguf");
    const gate = backend.hold("generate");
    const running = models.generate("a", "hi");
    await gate.arrived();

    const closing = models.close();

    expect(await rejection(models.generate("b", "hi"))).toMatchObject({ code: "closed", supervisor: models.name });
    expect(await rejection(models.load("c", "c.gguf"))).toMatchObject({ code: "closed" });
    expect(() => models.list()).not.toThrow();
    expect(backend.log).not.toContain("dispose a");
    gate.open();
    expect((await running).text).toMatch(/^one/);
    await closing;
    expect(await models.closed).toEqual({ reason: "closed", unreleased: [] });
    expect(backend.liveCopies).toBe(0);
    expect(models.list()).toEqual([]);
    expect(backend.disposalsInFlight).toBe(0);
  });

  it("aborts what is still in flight after timeoutMs", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await gate.arrived();

    const closing = models.close({ timeoutMs: 100 });
    clock.increment(100);

    expect(await running).toMatchObject({ code: "request_aborted" });
    await closing;
    expect(backend.liveCopies).toBe(0);
  });

  it("is joined by a second call, whose shorter time counts", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await gate.arrived();

    const patient = models.close();
    const urgent = models.close({ timeoutMs: 0 });

    expect(await running).toMatchObject({ code: "request_aborted" });
    await Promise.all([patient, urgent]);
    await models.close();
  });

  it("cancels loads under way", async () => {
    const { models, backend } = await startTestSupervisor({ models: [{ id: "boot", source: "boot.gguf" }] });
    await models.ready();
    const gate = backend.hold("start");
    const loading = rejection(models.load("a", "a.gguf"));
    await gate.arrived();

    await models.close();

    expect(await loading).toMatchObject({ code: "load_cancelled" });
    expect(backend.liveCopies).toBe(0);
  });

  it("ends in time although a disposal hangs, and says what was not given back", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    await models.load("b", "b.gguf");
    const gate = backend.hold("dispose", "a.gguf");

    const closing = models.close();
    await gate.arrived();
    await settle();
    clock.increment(30_000);
    await closing;

    expect(await models.closed).toEqual({
      reason: "closed",
      unreleased: [{ modelId: "a", incarnation: 1, placement: { ram: 0 } }],
    });
    expect(backend.log).toContain("dispose b");
    gate.open();
  });

  it("is what await using does", async () => {
    const backend = new FakeBackend();
    let closed: Promise<unknown>;
    {
      await using models = await ModelSupervisor.start({ name: "using", backend });
      await models.load("a", "a.gguf");
      ({ closed } = models);
    }

    expect(await closed).toMatchObject({ reason: "closed" });
    expect(backend.liveCopies).toBe(0);
  });
});
