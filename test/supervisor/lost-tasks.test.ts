import { describe, expect, it, vi } from "vitest";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** Makes the facts of the next load break the supervisor that passes them on, after the last of them. */
const fault = vi.hoisted(() => ({ isNext: false }));

vi.mock(import("../../src/supervisor/load-task.js"), async (original) => {
  const { loadTask } = await original();
  return {
    loadTask: async (...args) => {
      const facts = await loadTask(...args);
      if (!fault.isNext) return facts;
      fault.isNext = false;
      return Object.assign([...facts], {
        *[Symbol.iterator]() {
          yield* facts;
          throw new Error("a bug in the tasks supervisor");
        },
      });
    },
  };
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
    fault.isNext = true;

    await models.load("b", "b.gguf");

    expect(await loading).toMatchObject({ code: "request_aborted" });
    await settle();
    expect(models.list().map(({ id, status }) => [id, status])).toEqual([
      ["kept", "ready"],
      ["b", "ready"],
    ]);
    expect(models.memory().devices[0]?.reservedBytes).toBe(8); // the native load still runs
    gate.open();
    await settle();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 2 }], unreleased: [] });
    expect((await models.generate("kept", "hi")).text).toMatch(/^one/);
    expect(await models.load("a", "a.gguf")).toMatchObject({ status: "ready" });
    expect(warnings).toEqual([expect.stringContaining('"loads"')]);
  });

  it("orders the unloads under way again", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const gate = backend.hold("generate");
    const running = rejection(models.generate("a", "hi"));
    await gate.arrived();
    const unloading = rejection(models.unload("a"));
    fault.isNext = true;

    await models.load("b", "b.gguf");

    expect(await unloading).toMatchObject({ code: "request_aborted" });
    expect(await running).toMatchObject({ code: "request_aborted" });
    await settle();
    expect(models.list().map(({ id }) => id)).toEqual(["b"]);
    expect(backend.log).toEqual(["start a", "start b", "dispose a"]);
  });
});
