import { describe, expect, it, vi } from "vitest";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** A bug in the tasks supervisor: it fails when it is to start a task for the model "boom". */
vi.mock(import("../../src/supervisor/temporary-children.js"), async (original) => {
  const { temporaryChildrenMachine } = await original();
  const machine = Object.assign(Object.create(temporaryChildrenMachine) as typeof temporaryChildrenMachine, {
    transition: (...[snapshot, event, scope]: Parameters<typeof temporaryChildrenMachine.transition>) => {
      if (event.type === "child.start" && event.childId.startsWith("load:boom")) throw new Error("a bug");
      return temporaryChildrenMachine.transition(snapshot, event, scope);
    },
  });
  return { temporaryChildrenMachine: machine };
});

describe("a crash of the tasks supervisor", () => {
  it("fails the loads under way, whose memory comes back, and the manager goes on", async () => {
    const { models, backend, warnings } = await startTestSupervisor({
      memoryBudget: 10,
      fake: { models: { "a.gguf": { ramBytes: 6 }, "b.gguf": { ramBytes: 1 } } },
    });
    await models.load("kept", "b.gguf");
    const gate = backend.hold("start", "a.gguf", { ignoreAbort: true });
    const loading = rejection(models.load("a", "a.gguf"));
    await gate.arrived();

    expect(await rejection(models.load("boom", "b.gguf"))).toMatchObject({ code: "request_aborted" });

    expect(await loading).toMatchObject({ code: "request_aborted" });
    await settle();
    expect(models.list().map(({ id, status }) => [id, status])).toEqual([["kept", "ready"]]);
    expect(models.memory().devices[0]?.reservedBytes).toBe(7); // the native load still runs
    gate.open();
    await settle();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 1 }], unreleased: [] });
    expect((await models.generate("kept", "hi")).text).toMatch(/^one/);
    expect(await models.load("a", "a.gguf")).toMatchObject({ status: "ready" });
    expect(warnings).toEqual([expect.stringContaining('"loads"')]);
  });

  it("orders the unloads under way again", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = models.generate("a", "hi");
    await gate.arrived();
    const unloading = rejection(models.unload("a"));

    expect(await rejection(models.load("boom", "b.gguf"))).toMatchObject({ code: "request_aborted" });

    expect(await unloading).toMatchObject({ code: "request_aborted" });
    expect(models.info("a")).toMatchObject({ status: "unloading", leases: 1 });
    gate.open();
    expect((await running).text).toMatch(/^one/); // as it was asked for: without force
    await settle();
    expect(models.list()).toEqual([]);
    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("leaves no lease with a request that was told so while it waited for the next life of a model", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ id: "a", source: "a.gguf", loadPolicy: "lazy" }],
    });
    await models.generate("a", "hi");
    const disposal = backend.hold("dispose");
    const unloading = rejection(models.unload("a"));
    await disposal.arrived();
    const request = rejection(models.generate("a", "again"));
    await settle();

    await rejection(models.load("boom", "b.gguf"));
    expect(await request).toMatchObject({ code: "request_aborted" });
    await unloading;
    disposal.open();
    await settle();

    expect(models.info("a")?.leases).toBe(0);
    await models.unload("a", { timeoutMs: 0 });
    expect(backend.liveCopies).toBe(0);
  });
});
