import { describe, expect, it } from "vitest";
import type { Lease, ModelManager } from "../../src/index.js";
import type { FakeStep } from "../../src/testing/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const LAZY = {
  id: "a",
  source: "a",
  loadPolicy: "lazy",
  ttlMs: 10_000,
  capabilities: ["generate", "chat", "embed", "rank"],
} as const;

async function startLazy() {
  const started = await startTestSupervisor({ models: [LAZY] });
  await settle();
  return { ...started, leases: () => started.models.info("a")?.leases };
}

type Caller = Pick<ModelManager, "generate">;

const MESSAGES = [{ role: "user", content: "hi" }] as const;

/** Every inference call, by the step at which the fake engine can be held. */
const CALLS: [name: string, step: FakeStep, call: (models: ModelManager, signal?: AbortSignal) => Promise<unknown>][] =
  [
    ["generate", "generate", (models, signal) => models.generate("a", "hi", { signal })],
    ["stream", "generate", (models, signal) => models.stream("a", "hi", { signal }).result],
    ["chat", "generate", (models, signal) => models.chat("a", MESSAGES, { signal })],
    ["streamChat", "generate", (models, signal) => models.streamChat("a", MESSAGES, { signal }).result],
    ["embed", "embed", (models, signal) => models.embed("a", "hi", { signal })],
    ["embedMany", "embed", (models, signal) => models.embedMany("a", ["hi", "ho"], { signal })],
    ["rank", "rank", (models, signal) => models.rank("a", "hi", ["ho"], { signal })],
  ];

describe("every inference call", () => {
  it.each(CALLS)("%s holds the model until it is done", async (_name, step, call) => {
    const { models, backend, leases } = await startLazy();
    const gate = backend.hold(step);
    const running = call(models);
    await gate.arrived();
    expect(leases()).toBe(1);

    gate.open();
    await running;

    expect(leases()).toBe(0);
  });

  it.each(CALLS)("%s gives it back when it fails", async (_name, step, call) => {
    const { models, backend, leases } = await startLazy();
    backend.fail(step, new Error("no"));

    await rejection(call(models));

    expect(leases()).toBe(0);
  });

  it.each(CALLS)("%s gives it back when it is aborted, once the engine is quiet", async (_name, step, call) => {
    const { models, backend, leases } = await startLazy();
    const gate = backend.hold(step, "a", { ignoreAbort: true });
    const controller = new AbortController();
    const running = rejection(call(models, controller.signal));
    await gate.arrived();

    controller.abort(new Error("gone"));
    expect(await running).toMatchObject({ message: "gone" });
    expect(leases()).toBe(1);
    gate.open();
    await settle();

    expect(leases()).toBe(0);
  });

  it.each(CALLS)("%s is never cut off by the TTL of its model", async (_name, step, call) => {
    const { models, backend, clock } = await startLazy();
    const gate = backend.hold(step);
    const running = call(models);
    await gate.arrived();

    clock.increment(60_000);
    await settle();
    gate.open();

    await running;
    expect([backend.log, backend.disposalsInFlight]).toEqual([["start a"], 0]);
  });
});

describe("a stream", () => {
  async function startStream() {
    const started = await startLazy();
    const stream = started.models.stream("a", "hi");
    return { ...started, stream, reader: stream[Symbol.asyncIterator]() };
  }

  it("needs its model from the first pull on, not before", async () => {
    const { reader, backend, leases } = await startStream();
    await settle();
    expect(backend.log).toEqual([]);

    await reader.next();

    expect(backend.log).toEqual(["start a"]);
    await reader.return?.();
    await settle();
    expect(leases()).toBe(0);
  });

  it("may be left while its model is loaded for it", async () => {
    const { models, reader, backend } = await startStream();
    const gate = backend.hold("start");
    const first = reader.next();
    await gate.arrived();

    await reader.return?.();
    await first.catch(() => undefined);
    await settle();

    expect(models.info("a")).toMatchObject({ status: "registered", leases: 0 });
    expect(backend.liveCopies).toBe(0);
  });
});

describe("an acquired lease", () => {
  it("loads a lazy model, and holds the life that it got", async () => {
    const { models, leases } = await startLazy();

    using lease = await models.acquire("a");

    expect(lease).toMatchObject({ modelId: "a", incarnation: models.info("a")?.incarnation });
    expect(leases()).toBe(1);
    const caller: Pick<Lease, "generate"> = lease;
    expect((await caller.generate("hi")).modelId).toBe("a");
  });

  it("keeps its model from its TTL for as long as it is held, used or not", async () => {
    const { models, clock } = await startLazy();
    const lease = await models.acquire("a");
    clock.increment(60_000);
    await settle();
    expect(models.isLoaded("a")).toBe(true);

    lease.release();
    expect(models.info("a")?.expiresAt).toBe(70_000);
    clock.increment(10_000);
    await settle();

    expect(models.isLoaded("a")).toBe(false);
  });

  it("released twice is released once, and never in the name of another", async () => {
    const { models, leases } = await startLazy();
    const first = await models.acquire("a");
    const second = await models.acquire("a");

    first.release();
    first.release();
    first[Symbol.dispose]();

    expect(leases()).toBe(1);
    second.release();
    expect(leases()).toBe(0);
  });

  it("of an earlier life, released late, leaves the later one alone", async () => {
    const { models, backend, leases } = await startLazy();
    const early = await models.acquire("a");
    backend.crash("a");
    await settle();
    await models.load("a");
    const late = await models.acquire("a");

    early.release();

    expect(leases()).toBe(1);
    late.release();
    expect(leases()).toBe(0);
  });

  it("refuses every call after its release, with lease_released", async () => {
    const { models } = await startLazy();
    const lease = await models.acquire("a");
    lease.release();

    const calls = [
      () => lease.generate("hi"),
      () => lease.stream("hi").result,
      () => lease.chat(MESSAGES),
      () => lease.streamChat(MESSAGES).result,
      () => lease.embed("hi"),
      () => lease.embedMany(["hi"]),
      () => lease.rank("hi", ["ho"]),
      () => lease.tokenize("hi"),
      () => lease.detokenize([0]),
    ];
    for (const call of calls) expect(await rejection(call())).toMatchObject({ code: "lease_released", modelId: "a" });
  });

  it("never waits with its calls for anything: its model is there, though it is being unloaded", async () => {
    const { models } = await startLazy();
    const lease = await models.acquire("a");
    const unloading = models.unload("a");
    await settle();
    expect(models.info("a")?.status).toBe("unloading");

    const caller: Caller["generate"] = (_id, prompt, options) => lease.generate(prompt, options);
    expect((await caller("a", "hi", { waitForLoad: false })).modelId).toBe("a");
    lease.release();

    await unloading;
    expect(models.info("a")?.status).toBe("registered");
  });
});
