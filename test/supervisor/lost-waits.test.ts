import { expect, it, vi } from "vitest";
import { temporaryChildrenMachine } from "../../src/supervisor/temporary-children.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

it("a crash of the tasks supervisor ends the wait for a next life, which then does not begin for nobody", async () => {
  const { models, backend } = await startTestSupervisor();
  await models.register("a", "a.gguf");
  const lease = await models.acquire("a");
  const unloading = rejection(models.unload("a"));
  const waiting = rejection(models.generate("a", "hi"));
  await settle();

  vi.spyOn(temporaryChildrenMachine, "transition").mockImplementationOnce(() => {
    throw new Error("a bug");
  });
  expect(await rejection(models.load("b", "b.gguf"))).toMatchObject({ code: "request_aborted" });
  expect(await unloading).toMatchObject({ code: "request_aborted" });
  expect(await waiting).toMatchObject({ code: "request_aborted" });
  lease.release();
  await settle();

  expect(models.info("a")).toMatchObject({ status: "registered" });
  expect(backend.log).toEqual(["start a", "dispose a"]);
});
