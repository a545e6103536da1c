import { describe, expect, it } from "vitest";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** 100 words of 2 KiB each, as the text lies in memory: far more than a stream keeps. */
const LONG = Array.from({ length: 100 }, (_, index) => String(index).padEnd(1_023, "x")).join(" ");

async function withLongAnswers() {
  const started = await startTestSupervisor({ fake: { models: { "a.gguf": { reply: LONG } } } });
  await started.models.load("a", "a.gguf", { parallel: 1 });
  return started;
}

const leases = ({ models }: Awaited<ReturnType<typeof withLongAnswers>>) => models.info("a")?.leases;

describe("a stream whose consumer is slow", () => {
  it("keeps at most 64 KiB unread, and goes on as it is read", async () => {
    const started = await withLongAnswers();
    const words: string[] = [];
    const tokens = started.backend.hold("token");
    tokens.open();
    const reader = started.models.stream("a", "go")[Symbol.asyncIterator]();

    words.push(String((await reader.next()).value));
    await settle();
    expect(tokens.arrivals).toBeGreaterThan(20);
    expect(tokens.arrivals).toBeLessThanOrEqual(33);

    for (let step = await reader.next(); !step.done; step = await reader.next()) words.push(step.value);
    expect(words.join("")).toBe(LONG);
    await settle();
    expect(leases(started)).toBe(0);
  });

  it("counts the probabilities that come with the text, which may be far more than that", async () => {
    const reply = "x ".repeat(2_000);
    const { models, backend } = await startTestSupervisor({ fake: { models: { "a.gguf": { reply } } } });
    await models.load("a", "a.gguf", { contextSize: 4_096 });
    const tokens = backend.hold("token");
    tokens.open();
    const stream = models.stream("a", "go", { maxTokens: 2_000, logprobs: true, topLogprobs: 1 });
    const reader = stream[Symbol.asyncIterator]();

    await reader.next();
    await settle();
    expect(tokens.arrivals).toBeGreaterThan(100);
    expect(tokens.arrivals).toBeLessThan(700);

    await reader.return?.();
  });

  it("gives its lease back by idleConsumerMs, however little lies unread while the model goes on", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const tokens = backend.hold("token");
    const reader = models.stream("a", "go", { idleConsumerMs: 5_000 })[Symbol.asyncIterator]();
    const first = reader.next();
    await tokens.arrived();
    tokens.pass();
    await first;
    await settle();
    tokens.pass(); // the second word lies unread, and the model is at the third
    await settle();

    clock.increment(4_999);
    await settle();
    expect(models.info("a")?.leases).toBe(1);
    clock.increment(1);
    await settle();

    expect(models.info("a")?.leases).toBe(0);
  });

  it("may take its time where nothing is there to be read", async () => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    const tokens = backend.hold("token");
    const stream = models.stream("a", "go", { idleConsumerMs: 5_000 });
    const reader = stream[Symbol.asyncIterator]();
    const first = reader.next();
    await tokens.arrived();
    clock.increment(60_000);
    tokens.open();

    expect(await first).toMatchObject({ done: false });
    await stream.result;
  });

  it("is aborted when it reads nothing for idleConsumerMs, with what was read still right", async () => {
    const started = await withLongAnswers();
    const stream = started.models.stream("a", "go", { idleConsumerMs: 5_000 });
    const reader = stream[Symbol.asyncIterator]();
    await reader.next();
    await settle();

    started.clock.increment(4_999);
    await settle();
    expect(leases(started)).toBe(1);
    started.clock.increment(1);
    await settle();

    expect(leases(started)).toBe(0);
    expect(await rejection(stream.result)).toMatchObject({ code: "request_aborted", modelId: "a", retryable: true });
  });

  it("starts its time anew whenever it has read enough for the model to go on", async () => {
    const started = await withLongAnswers();
    const reader = started.models.stream("a", "go", { idleConsumerMs: 5_000 })[Symbol.asyncIterator]();

    for (let word = 0; word < 100; word++) {
      expect((await reader.next()).done).toBe(false);
      await settle();
      started.clock.increment(1_000 / 20);
    }
    expect((await reader.next()).done).toBe(true);
  });

  it("starts its time anew with each piece that is read, also while the model still pauses", async () => {
    const started = await withLongAnswers();
    const stream = started.models.stream("a", "go", { idleConsumerMs: 5_000 });
    const reader = stream[Symbol.asyncIterator]();
    await reader.next();
    await settle();

    for (let word = 0; word < 10; word++) {
      started.clock.increment(4_999);
      expect((await reader.next()).done).toBe(false);
    }
    await settle();
    expect(leases(started)).toBe(1);

    started.clock.increment(5_000);
    expect(await rejection(stream.result)).toMatchObject({ code: "request_aborted" });
  });

  it("waits a minute where nothing else is said", async () => {
    const started = await withLongAnswers();
    const reader = started.models.stream("a", "go")[Symbol.asyncIterator]();
    await reader.next();
    await settle();

    started.clock.increment(59_999);
    expect(leases(started)).toBe(1);
    started.clock.increment(1);
    await settle();
    expect(leases(started)).toBe(0);
  });

  it("gives its slot to the next request when it leaves while the model pauses", async () => {
    const started = await withLongAnswers();
    const reader = started.models.stream("a", "go")[Symbol.asyncIterator]();
    await reader.next();
    const next = started.models.generate("a", "next");
    await settle();
    expect(started.models.info("a")).toMatchObject({ queued: 1, leases: 2 });

    await reader.return?.();

    expect((await next).text).toBe(LONG);
  });

  it("never waits for a reader that there is not: who awaits the result alone gets it whole", async () => {
    const started = await withLongAnswers();
    const stream = started.models.stream("a", "go");

    expect((await stream.result).text).toBe(LONG);
    let read = "";
    for await (const piece of stream) read += piece;
    expect(read).toBe(LONG);
  });
});
