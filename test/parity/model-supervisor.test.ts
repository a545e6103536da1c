import { SimulatedClock } from "xstate";
import { describe, expect, it, vi } from "vitest";
import { Executor } from "../../src/manager/executor.js";
import { ModelSupervisor } from "../../src/index.js";
import { FakeBackend } from "../../src/testing/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const BIG = { models: { "big.gguf": { ramBytes: 5_000 }, "small.gguf": { ramBytes: 100 } } };

describe("supervision tree", () => {
  it("has its three parts in the order in which they depend on each other", async () => {
    const { models } = await startTestSupervisor();

    const tree = models.tree();

    expect(tree.children).toMatchObject([
      { id: "backings", kind: "supervisor", strategy: "one_for_one", children: [] },
      { id: "manager", kind: "worker" },
      { id: "loads", kind: "supervisor", strategy: "one_for_one", children: [] },
    ]);
  });

  it("is restarted from the failed part on, because the later ones depend on it", async () => {
    const backend = new FakeBackend();
    await using models = await ModelSupervisor.start({
      name: "restarted",
      backend,
      memoryBudget: "unlimited",
      clock: new SimulatedClock(),
      logger: { warn: () => undefined },
      models: [{ id: "declared", source: "declared.gguf" }],
    });
    await models.ready();
    const before = await models.load("guest", "guest.gguf");
    const gate = backend.hold("start", "parked.gguf");
    const parked = rejection(models.load("parked", "parked.gguf"));
    await gate.arrived();
    const lost: string[] = [];
    models.on("model:lost", ({ modelId }) => lost.push(modelId));
    vi.spyOn(Executor.prototype, "handle").mockImplementationOnce(() => {
      throw new Error("a bug in the manager");
    });

    const cut = await rejection(models.load("trigger", "trigger.gguf"));
    await settle();

    expect(models.tree()).toMatchObject({ strategy: "rest_for_one", restarts: 1 });
    expect(cut).toMatchObject({ code: "request_aborted" });
    expect(await parked).toMatchObject({ code: "request_aborted" });
    expect(lost.toSorted()).toEqual(["guest", "parked"]);
    expect(models.list()).toMatchObject([{ id: "declared", status: "ready" }]);
    expect(models.info("declared")?.incarnation).toBeGreaterThan(before.incarnation);
    expect(backend.liveCopies).toBe(1);
  });
});

describe("start", () => {
  it("brings up the tree and a manager with an empty table", async () => {
    const { models } = await startTestSupervisor();

    expect(models.tree().children).toHaveLength(3);
    expect(models.list()).toEqual([]);
    expect(models.defaultId()).toBeUndefined();
  });

  it("names the manager, so that several run side by side", async () => {
    const { models: one } = await startTestSupervisor({ name: "one" });
    const { models: two } = await startTestSupervisor({ name: "two" });

    await one.load("chat", "chat.gguf");

    expect(one.name).toBe("one");
    expect(one.tree().id).toBe("one");
    expect(ModelSupervisor.get("one")).toBe(one);
    expect(ModelSupervisor.get("two")).toBe(two);
    expect(two.list()).toEqual([]);
    expect(() => ModelSupervisor.get()).toThrow(expect.objectContaining({ code: "not_started" }));
  });

  it("is refused under a name that is in use, until that one is closed", async () => {
    const { models } = await startTestSupervisor({ name: "once" });
    const refused = await rejection(startTestSupervisor({ name: "once" }));

    await models.close();
    const { models: next } = await startTestSupervisor({ name: "once" });

    expect(refused).toMatchObject({ code: "already_started", supervisor: "once" });
    expect(ModelSupervisor.get("once")).toBe(next);
  });

  it("loads the declared models through the given backend", async () => {
    const backend = new FakeBackend();
    const gate = backend.hold("resolve", "chat.gguf");

    const { models } = await startTestSupervisor({
      backend,
      models: [{ id: "chat", source: "chat.gguf", mode: "direct" }],
    });
    await gate.arrived();
    gate.open();
    await models.ready();

    expect(models.list()).toMatchObject([{ id: "chat", status: "ready", mode: "direct" }]);
    expect(backend.log).toEqual(["start chat"]);
  });

  it("loads nothing when nothing is declared", async () => {
    const backend = new FakeBackend();
    const gate = backend.hold("resolve");

    const { models } = await startTestSupervisor({ backend });
    await models.ready();
    await settle();

    expect(models.list()).toEqual([]);
    expect(gate.arrivals).toBe(0);
  });

  it("holds a declared model to the memory budget, and the manager stays up", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 500,
      fake: BIG,
      models: [{ id: "big", source: "big.gguf", mode: "direct" }],
    });

    const failed = await rejection(models.ready());
    const small = await models.load("small", "small.gguf");

    expect(failed).toMatchObject({
      errors: [{ code: "insufficient_memory", modelId: "big", requiredBytes: 5_000, availableBytes: 500 }],
    });
    expect(models.info("big")).toMatchObject({ status: "error", error: { code: "insufficient_memory" } });
    expect(small.status).toBe("ready");
  });

  it("loads the same declared model when the budget fits", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 50_000,
      fake: BIG,
      models: [{ id: "big", source: "big.gguf", mode: "direct" }],
    });

    await models.ready();

    expect(models.info("big")?.status).toBe("ready");
  });

  it("refuses an option that it does not know, naming the nearest one that it does", async () => {
    const misspelt: object = { memoryBuget: 4_096 };

    const refused = await rejection(startTestSupervisor(misspelt));

    expect(refused).toMatchObject({
      code: "invalid_option",
      option: "memoryBuget",
      expected: expect.stringContaining('did you mean "memoryBudget"'),
    });
  });

  it("refuses an unknown option of a declared model, instead of failing while it loads", async () => {
    const declaration = { id: "chat", source: "chat.gguf", contextsize: 4_096 };

    const refused = await rejection(startTestSupervisor({ models: [declaration] }));

    expect(refused).toMatchObject({
      code: "invalid_option",
      option: "models.0.contextsize",
      expected: expect.stringContaining('did you mean "contextSize"'),
    });
  });
});
