import { describe, expect, it } from "vitest";
import { settle, startTestSupervisor } from "../support/test-supervisor.js";

/** Listeners are called in the middle of what they are told of, and may call the manager. */
describe("a listener that takes the model which would go next", () => {
  it("keeps it from its TTL, and from being closed for a moment", async () => {
    const { models, clock } = await startTestSupervisor();
    for (const id of ["a", "b"]) await models.load(id, id, { ttlMs: 10_000 });
    const gone: string[] = [];
    models.on("model:unloading", ({ modelId }) => gone.push(modelId));
    models.once("model:unloading", () => void models.acquire("b"));

    clock.increment(11_000);
    await settle();

    expect(gone).toEqual(["a"]);
    expect(models.info("b")).toMatchObject({ status: "ready", leases: 1 });
  });

  it("keeps it from an eviction: the plan is drawn again", async () => {
    const { models } = await startTestSupervisor({
      fake: { models: { a: { ramBytes: 3 }, b: { ramBytes: 3 }, c: { ramBytes: 3 }, d: { ramBytes: 6 } } },
      memoryBudget: 9,
      overBudget: "evict-idle",
    });
    for (const id of ["a", "b", "c"]) await models.load(id, id);
    for (const id of ["a", "b", "c"]) await models.generate(id, "hi");
    const gone: string[] = [];
    models.on("model:unloading", ({ modelId }) => gone.push(modelId));
    models.once("model:unloading", () => void models.acquire("b"));

    await models.load("d", "d");

    expect(gone).toEqual(["a", "c"]);
    expect(models.info("b")).toMatchObject({ status: "ready", leases: 1 });
  });
});
