import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { describe, expect, it, onTestFinished } from "vitest";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

type Started = Awaited<ReturnType<typeof startTestSupervisor>>;

async function withModel(): Promise<Started> {
  const started = await startTestSupervisor();
  await started.models.load("a", "a.gguf", { parallel: 1 });
  return started;
}

/** What is told about requests, in order. */
function listen({ models }: Started): { name: string; payload: object }[] {
  const heard: { name: string; payload: object }[] = [];
  const note = (name: string) => (payload: object) => void heard.push({ name, payload });
  models.on("request:start", note("start"));
  models.on("request:queued", note("queued"));
  models.on("request:end", note("end"));
  return heard;
}

describe("events of requests", () => {
  it("tell the start and the end with the counts and times, and nothing that was said", async () => {
    const started = await withModel();
    const heard = listen(started);

    const { requestId, usage, timings } = await started.models.generate("a", "hello");

    const request = { modelId: "a", incarnation: 1, requestId, call: "generate" };
    expect(heard).toEqual([
      { name: "start", payload: request },
      {
        name: "end",
        payload: { ...request, outcome: "done", durationMs: 0, finishReason: "stop", usage, timings },
      },
    ]);
  });

  it("tell the place in the queue of a request that has to wait", async () => {
    const started = await withModel();
    const gate = started.backend.hold("generate");
    const heard = listen(started);

    const all = Promise.all(["one", "two", "three"].map((prompt) => started.models.generate("a", prompt)));
    await settle();
    gate.open();
    await all;

    const positions = heard.flatMap(({ name, payload }) =>
      name === "queued" && "position" in payload ? [payload.position] : [],
    );
    expect(positions).toEqual([1, 2]);
  });

  it("tell an abort from a failure, with the phase and the code", async () => {
    const started = await withModel();
    const heard = listen(started);
    const gate = started.backend.hold("generate");
    const controller = new AbortController();

    const aborted = started.models.generate("a", "one", { signal: controller.signal });
    const late = started.models.generate("a", "two", { timeoutMs: 100 });
    controller.abort(new Error("enough"));
    await rejection(aborted);
    await settle();
    started.clock.increment(100);
    await rejection(late);
    gate.open();
    await settle();
    await rejection(started.models.embed("a", "text"));
    await settle();

    const ends = heard.filter(({ name }) => name === "end").map(({ payload }) => payload);
    expect(ends).toEqual([
      expect.objectContaining({ outcome: "aborted", phase: "prefill", call: "generate" }),
      expect.objectContaining({ outcome: "aborted", phase: "prefill", code: "request_timeout", durationMs: 100 }),
      expect.objectContaining({ outcome: "failed", code: "unsupported_capability", call: "embed" }),
    ]);
    expect(ends[0]).not.toHaveProperty("code");
  });

  it("go to the channels of node:diagnostics_channel too, with the supervisor's name", async () => {
    const started = await withModel();
    const heard: unknown[] = [];
    const listener = (message: unknown) => void heard.push(message);
    subscribe("model-supervisor:request:end", listener);
    onTestFinished(() => void unsubscribe("model-supervisor:request:end", listener));

    await started.models.tokenize("a", "hello");

    expect(heard).toEqual([
      expect.objectContaining({ supervisor: started.models.name, call: "tokenize", outcome: "done" }),
    ]);
  });

  it("do no harm by listeners that throw", async () => {
    const started = await withModel();
    started.models.on("request:end", () => {
      throw new Error("listener");
    });

    await expect(started.models.generate("a", "hello")).resolves.toMatchObject({ finishReason: "stop" });
    expect(started.warnings).toHaveLength(1);
  });
});

describe("maxQueueTotal", () => {
  it("bounds what waits over all models, and says that it is this limit", async () => {
    const started = await startTestSupervisor({ maxQueueTotal: 2 });
    for (const id of ["a", "b"]) await started.models.load(id, `${id}.gguf`, { parallel: 1 });
    const gate = started.backend.hold("generate");
    const accepted = ["a", "a", "b", "b"].map((id) => started.models.generate(id, "hello"));
    await settle();

    const error = await rejection(started.models.generate("b", "one too many"));
    expect(error).toMatchObject({ code: "queue_full", modelId: "b", limit: 2, queued: 2, retryable: true });
    expect(String(error)).toContain("maxQueueTotal");
    gate.open();
    await Promise.all(accepted);

    await expect(Promise.all(["a", "a", "a"].map((id) => started.models.generate(id, "hi")))).resolves.toHaveLength(3);
  });

  it("is 1,024 where nothing else is said", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf", { parallel: 1, maxQueue: 2_000 });
    const gate = backend.hold("generate");
    const accepted = Array.from({ length: 1 + 1_024 }, () => models.generate("a", "hello"));
    await settle();

    expect(await rejection(models.generate("a", "one too many"))).toMatchObject({ code: "queue_full", limit: 1_024 });
    gate.open();
    await Promise.all(accepted);
  });
});
