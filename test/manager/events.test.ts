import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { describe, expect, it, onTestFinished } from "vitest";
import type { ModelManagerEvents } from "../../src/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const NAMES = [
  "model:registered",
  "model:loading",
  "model:ready",
  "model:unloading",
  "model:unloaded",
  "model:error",
  "model:lost",
  "budget:refused",
  "request:start",
  "request:queued",
  "request:end",
  "engine:step",
] as const satisfies readonly (keyof ModelManagerEvents)[];

/** What comes on the channels of these supervisors' events, in order. */
function subscribeAll(): { readonly name: string; readonly message: unknown }[] {
  const heard: { name: string; message: unknown }[] = [];
  for (const name of NAMES) {
    const note = (message: unknown) => void heard.push({ name, message });
    subscribe(`model-supervisor:${name}`, note);
    onTestFinished(() => void unsubscribe(`model-supervisor:${name}`, note));
  }
  return heard;
}

describe("events", () => {
  it("tell the facts about a model on channels as to listeners, with the supervisor's name", async () => {
    const { models } = await startTestSupervisor();
    const onChannels = subscribeAll();
    const told: { name: string; message: unknown }[] = [];
    for (const name of NAMES) {
      models.on(name, (payload: object) => {
        told.push({ name, message: { ...payload, supervisor: models.name } });
      });
    }

    await models.load("a", "a.gguf");
    await models.unload("a");

    expect(told.map(({ name }) => name)).toEqual(["model:loading", "model:ready", "model:unloading", "model:unloaded"]);
    expect(onChannels).toEqual(told);
  });

  it("never carry a word of what was said", async () => {
    const { models, backend } = await startTestSupervisor({
      fake: { models: { "a.gguf": { reply: "secret answer" } } },
    });
    const heard = subscribeAll();
    await models.load("a", "a.gguf", {
      capabilities: ["generate", "chat", "embed", "rank"],
      mode: "server",
      parallel: 1,
    });

    await models.generate("a", "secret prompt", { stop: ["secret stop"] });
    await models.chat("a", [{ role: "user", content: "secret message" }], { scope: "secret scope" });
    await models.embed("a", "secret text");
    await models.rank("a", "secret query", ["secret document"]);
    await models.detokenize("a", await models.tokenize("a", "secret words"));
    await rejection(models.generate("a", "secret ".repeat(5000))); // does not fit
    backend.fail("generate", new Error("the engine says: secret"));
    await rejection(models.generate("a", "secret prompt"));
    await settle();

    const ends = heard.filter(({ name }) => name === "request:end");
    expect(ends).toHaveLength(8);
    expect(JSON.stringify(heard)).not.toContain("secret");
  });
});
