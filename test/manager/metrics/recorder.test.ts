import { describe, expect, it } from "vitest";
import { BackingCrashedError, DisposeFailedError, LoadFailedError } from "../../../src/index.js";
import type { MemoryReport, ModelMetrics } from "../../../src/index.js";
import { blank } from "../../../src/manager/decision.js";
import type { Notice } from "../../../src/manager/decision.js";
import { MetricsRecorder } from "../../../src/manager/metrics/recorder.js";
import { loadSettings } from "../../../src/manager/options.js";
import { createModelTable } from "../../../src/table/model-table.js";

const modelId = "a";
const loading = (incarnation = 1, trigger: "eager" | "request" | "call" = "call"): Notice => ({
  name: "model:loading",
  payload: { modelId, incarnation, trigger },
});
const ready = (loadMs?: number, incarnation = 1): Notice => ({
  name: "model:ready",
  payload: { modelId, incarnation, ...(loadMs !== undefined && { loadMs }) },
});
type Reason = "caller" | "ttl" | "eviction" | "close";
const unloading = (reason: Reason, idleMs = 0, incarnation = 1): Notice => ({
  name: "model:unloading",
  payload: { modelId, incarnation, reason, idleMs },
});
const unloaded = (reason: Reason, incarnation = 1): Notice => ({
  name: "model:unloaded",
  payload: { modelId, incarnation, reason },
});
const failed = (error = new LoadFailedError(modelId, "start", new Error("no")), incarnation = 1): Notice => ({
  name: "model:error",
  payload: { modelId, incarnation, error },
});
const crashed: Notice = {
  name: "model:error",
  payload: { modelId, incarnation: 1, error: new BackingCrashedError({ modelId, incarnation: 1 }) },
};
const stuck: Notice = {
  name: "model:error",
  payload: { modelId, incarnation: 1, error: new DisposeFailedError(modelId, "hung") },
};

const memory: MemoryReport = {
  devices: [
    { device: "ram", limitBytes: 100, reservedBytes: 10, measuredBytes: 5, availableBytes: 90, evictableBytes: 3 },
    { device: "gpu:0", limitBytes: null, reservedBytes: 0, measuredBytes: 0, availableBytes: null, evictableBytes: 0 },
  ],
  unreleased: [],
};

function newRecorder() {
  const { table, writer } = createModelTable([], "unlimited");
  return { recorder: new MetricsRecorder(table), writer };
}

/** The numbers of model `a` after these notices. */
function after(...notices: readonly Notice[]): ModelMetrics | undefined {
  const { recorder } = newRecorder();
  for (const notice of notices) recorder.observe(notice);
  return recorder.snapshot(memory).models.find((model) => model.modelId === modelId);
}

const noUnloads = { caller: 0, ttl: 0, eviction: 0, close: 0, crash: 0 };

describe("the recorder", () => {
  it("knows a model from its declaration on, with zeros", () => {
    expect(after({ name: "model:registered", payload: { modelId } })).toMatchObject({
      modelId,
      loads: { eager: 0, request: 0, call: 0 },
      unloads: noUnloads,
      requests: { done: 0, aborted: 0, failed: 0 },
      inFlight: 0,
      peakInFlight: 0,
    });
  });

  it("counts loads by what they were for, over the lives of an id", () => {
    const numbers = after(
      loading(1, "eager"),
      ready(2_000),
      unloading("ttl"),
      unloaded("ttl"),
      loading(2, "request"),
      ready(500, 2),
      loading(3, "call"),
    );

    expect(numbers?.loads).toEqual({ eager: 1, request: 1, call: 1 });
    expect(numbers?.loadSeconds).toMatchObject({ sum: 2.5, count: 2 });
  });

  it.each(["caller", "ttl", "eviction", "close"] as const)(
    "counts an unload by %s when the memory is free",
    (reason) => {
      expect(after(loading(), ready(1), unloading(reason))?.unloads).toEqual(noUnloads);
      expect(after(loading(), ready(1), unloading(reason), unloaded(reason))?.unloads).toEqual({
        ...noUnloads,
        [reason]: 1,
      });
    },
  );

  it("tells how long a model was idle when it was evicted, and no other unload", () => {
    const evicted = after(loading(), ready(1), unloading("eviction", 90_000), unloaded("eviction"));

    expect(evicted?.evictionIdleSeconds).toMatchObject({ sum: 90, count: 1 });
    const others = after(loading(), ready(1), unloading("ttl", 90_000), unloaded("ttl"));
    expect(others?.evictionIdleSeconds.count).toBe(0);
  });

  it("does not count an eviction that was given up as one", () => {
    const givenUp = after(loading(), ready(1), unloading("eviction", 90_000), ready());

    expect(givenUp?.evictionIdleSeconds.count).toBe(0);
  });

  it.each<[string, readonly Notice[], Partial<ModelMetrics>]>([
    ["a load that fails", [loading(), failed()], { failedLoads: 1, cancelledLoads: 0, unloads: noUnloads }],
    [
      "a load whose engine crashes, which was never ready",
      [loading(), crashed],
      { failedLoads: 1, cancelledLoads: 0, unloads: noUnloads },
    ],
    [
      "a load that is cancelled",
      [loading(), unloaded("caller")],
      { failedLoads: 0, cancelledLoads: 1, unloads: noUnloads },
    ],
    [
      "a crash of a ready model",
      [loading(), ready(1), crashed],
      { failedLoads: 0, cancelledLoads: 0, unloads: { ...noUnloads, crash: 1 } },
    ],
    [
      "a crash whose rest cannot be disposed either, once",
      [loading(), ready(1), crashed, stuck],
      { failedLoads: 0, cancelledLoads: 0, unloads: { ...noUnloads, crash: 1 } },
    ],
    [
      "an unload that hangs, as nothing yet: the memory is not free",
      [loading(), ready(1), unloading("caller"), stuck],
      { failedLoads: 0, cancelledLoads: 0, unloads: noUnloads },
    ],
    [
      "an unload after a failed one, once, and one load",
      [loading(), ready(1), unloading("caller"), ready(), unloading("caller"), unloaded("caller")],
      {
        failedLoads: 0,
        cancelledLoads: 0,
        unloads: { ...noUnloads, caller: 1 },
        loads: { eager: 0, request: 0, call: 1 },
      },
    ],
    [
      "what an earlier life says late, not as the end of this load",
      [loading(1), ready(1), loading(2), unloaded("close", 1), failed(undefined, 2)],
      { failedLoads: 1, cancelledLoads: 0, unloads: { ...noUnloads, close: 1 } },
    ],
  ])("counts %s", (_, notices, expected) => {
    expect(after(...notices)).toMatchObject(expected);
  });

  it("does not take an unload that failed for a load that took no time", () => {
    expect(after(loading(), ready(1_000), unloading("caller"), ready())?.loadSeconds).toMatchObject({
      sum: 1,
      count: 1,
    });
  });

  it("counts joined loads, cold starts and requests, with their wait for a slot where it is known", () => {
    const { recorder } = newRecorder();
    recorder.observe(loading(1, "request"));
    recorder.joined(modelId);
    recorder.coldStart(modelId, 1_500);
    recorder.coldStart(modelId, 500);
    recorder.requestEnded(modelId, "done", 20);
    recorder.requestEnded(modelId, "done");
    recorder.requestEnded(modelId, "aborted");
    recorder.requestEnded(modelId, "failed");

    expect(recorder.snapshot(memory).models).toMatchObject([
      {
        joinedLoads: 1,
        coldStartSeconds: { sum: 2, count: 2 },
        queueSeconds: { sum: 0.02, count: 1 },
        requests: { done: 2, aborted: 1, failed: 1 },
      },
    ]);
  });

  it("shows the memory of each device with the loads that it was too small for", () => {
    const { recorder } = newRecorder();
    const refused: Notice = {
      name: "budget:refused",
      payload: { modelId, device: "gpu:0", requiredBytes: 2, availableBytes: 1, evictableBytes: 0 },
    };
    recorder.observe(refused);
    recorder.observe(refused);

    expect(recorder.snapshot(memory).devices).toEqual([
      { ...memory.devices[0], refusals: 0 },
      { ...memory.devices[1], refusals: 2 },
    ]);
  });

  it("is the same after a round trip through JSON, and keeps nothing of what it gave", () => {
    const { recorder } = newRecorder();
    recorder.observe(loading());
    recorder.observe(ready(3_000));
    const first = recorder.snapshot(memory);
    const text = JSON.stringify(first);

    recorder.requestEnded(modelId, "done", 7);
    recorder.observe(crashed);
    recorder.observe(loading(2));

    expect(JSON.parse(text)).toEqual(first);
    expect(JSON.stringify(first)).toBe(text);
  });

  it("forgets the longest not loaded of more than 1,000 ids, but none that the table knows", () => {
    const { recorder, writer } = newRecorder();
    const load = (id: string) =>
      recorder.observe({ name: "model:loading", payload: { modelId: id, incarnation: 1, trigger: "call" } });
    writer.put(blank("m0", "m0.gguf", loadSettings({}, Infinity), true));
    for (let number = 0; number < 1000; number++) load(`m${number}`);
    expect(recorder.snapshot(memory).models).toHaveLength(1000);
    load("m1"); // now the last that was loaded

    load("one more");
    load("and one more");

    const ids = recorder.snapshot(memory).models.map((model) => model.modelId);
    expect(ids).toHaveLength(1000);
    expect(ids.slice(0, 2)).toEqual(["m0", "m4"]);
    expect(ids.slice(-3)).toEqual(["m1", "one more", "and one more"]);
  });

  it("keeps ids apart whatever they are called", () => {
    const { recorder } = newRecorder();
    for (const id of ["__proto__", "constructor"]) recorder.requestEnded(id, "done");

    expect(recorder.snapshot(memory).models.map((model) => [model.modelId, model.requests.done])).toEqual([
      ["__proto__", 1],
      ["constructor", 1],
    ]);
  });
});
