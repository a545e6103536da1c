import { describe, expect, it } from "vitest";
import type { Capability } from "../../src/index.js";
import type { FakeBackend, FakeStep } from "../../src/testing/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** Counts the requests that come to a fake model before it is ready. */
function countSteps(backend: FakeBackend) {
  const gates = (["generate", "embed", "rank"] as const).map((step) => ({ step, gate: backend.hold(step) }));
  for (const { gate } of gates) gate.open();
  return () => Object.fromEntries(gates.map(({ step, gate }) => [step, gate.arrivals]));
}

describe("a warm-up", () => {
  it.each<[capabilities: Capability[], expected: Record<string, number>]>([
    [["generate"], { generate: 1, embed: 0, rank: 0 }],
    [["generate", "chat"], { generate: 2, embed: 0, rank: 0 }],
    [["embed", "rank"], { generate: 0, embed: 1, rank: 1 }],
    [["generate", "chat", "embed", "rank"], { generate: 2, embed: 1, rank: 1 }],
  ])("runs each of %j once before the model is ready", async (capabilities, expected) => {
    const { models, backend } = await startTestSupervisor();
    const steps = countSteps(backend);

    const info = await models.load("a", "a", { warmUp: true, capabilities });

    expect(steps()).toEqual(expected);
    expect(info).toMatchObject({ status: "ready", leases: 0, lastUsedAt: undefined });
  });

  it("is not run by default", async () => {
    const { models, backend } = await startTestSupervisor();
    const steps = countSteps(backend);

    await models.load("a", "a");

    expect(steps()).toEqual({ generate: 0, embed: 0, rank: 0 });
  });

  it("is told as a phase of the load", async () => {
    const { models } = await startTestSupervisor();
    const phases: string[] = [];

    await models.load("a", "a", { warmUp: true, onProgress: ({ phase }) => phases.push(phase) });

    expect(phases.at(-1)).toBe("warm-up");
  });

  it("is no request: nobody is told of one", async () => {
    const { models } = await startTestSupervisor();
    const requests: unknown[] = [];
    models.on("request:start", (event) => requests.push(event));

    await models.load("a", "a", { warmUp: true });

    expect(requests).toEqual([]);
  });

  it("is waited for by the requests that need the model", async () => {
    const { models, backend } = await startTestSupervisor({
      models: [{ id: "a", source: "a", loadPolicy: "lazy", warmUp: true, capabilities: ["embed"] }],
    });
    const warming = backend.hold("embed");
    const request = models.embed("a", "hi");
    await warming.arrived();
    expect(models.info("a")).toMatchObject({ status: "loading", leases: 0 });

    warming.open();

    expect((await request).embedding).toHaveLength(16);
    expect(warming.arrivals).toBe(2);
  });

  it.each<[step: FakeStep, capabilities: Capability[]]>([
    ["generate", ["generate"]],
    ["generate", ["chat"]],
    ["embed", ["embed"]],
    ["rank", ["rank"]],
  ])("that fails at %s %j fails the load, and everything is given back", async (step, capabilities) => {
    const { models, backend } = await startTestSupervisor({ fake: { models: { a: { ramBytes: 6 } } } });
    backend.fail(step, new Error("cold"), "a");

    const error = await rejection(models.load("a", "a", { warmUp: true, capabilities }));

    expect(error).toMatchObject({ code: "load_failed", modelId: "a", phase: "warm-up", cause: { message: "cold" } });
    expect(models.list()).toEqual([]);
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect([backend.liveCopies, backend.log]).toEqual([0, ["start a", "dispose a"]]);
  });

  it("during which the engine crashes fails the load", async () => {
    const { models, backend } = await startTestSupervisor();
    const warming = backend.hold("generate");
    const loading = rejection(models.load("a", "a", { warmUp: true }));
    await warming.arrived();

    backend.crash("a", { cause: new Error("boom") });

    expect(await loading).toMatchObject({ code: "load_failed", phase: "warm-up", cause: { message: "boom" } });
    expect(backend.liveCopies).toBe(0);
  });

  it("ends with its load: an unload aborts it, and disposes when it has fallen quiet", async () => {
    const { models, backend } = await startTestSupervisor({ fake: { models: { a: { ramBytes: 6 } } } });
    const warming = backend.hold("token", "a", { ignoreAbort: true });
    const loading = rejection(models.load("a", "a", { warmUp: true }));
    await warming.arrived();

    const unloading = models.unload("a");
    await settle();
    expect(backend.log).toEqual(["start a"]);
    warming.open();
    await unloading;

    expect(await loading).toMatchObject({ code: "load_cancelled" });
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(backend.disposalsInFlight).toBe(0);
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
  });

  it("that cannot be given back after it failed keeps its bytes, and says so", async () => {
    const { models, backend } = await startTestSupervisor({ fake: { models: { a: { ramBytes: 6 } } } });
    backend.fail("generate", new Error("cold"), "a");
    backend.fail("dispose", new Error("stuck"), "a");

    expect(await rejection(models.load("a", "a", { warmUp: true }))).toMatchObject({ code: "load_failed" });

    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 6 }], unreleased: [{ modelId: "a" }] });
  });
});
