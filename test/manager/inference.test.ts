import { describe, expect, it, vi } from "vitest";
import type { ModelManager } from "../../src/index.js";
import { LeaseReleasedError } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const WORDS = "one two three four five six seven eight";

async function withModel(options: Parameters<typeof startTestSupervisor>[0] = {}) {
  const started = await startTestSupervisor(options);
  await started.models.load("a", "a.gguf", { default: true });
  return started;
}

function leases(models: ModelManager): number | undefined {
  return models.info("a")?.leases;
}

describe("generate and chat", () => {
  it("answer with text, usage, timings, the model's id and a request id of their own", async () => {
    const { models } = await withModel();

    const first = await models.generate("a", "hello there");
    const second = await models.chat("a", [{ role: "user", content: "hello" }]);

    expect(first).toEqual({
      text: WORDS,
      finishReason: "stop",
      usage: { promptTokens: 2, completionTokens: 8, cachedTokens: 0 },
      timings: expect.objectContaining({ queueMs: expect.any(Number) }),
      modelId: "a",
      requestId: expect.stringMatching(/^[\w-]{21}$/),
    });
    expect(second.requestId).not.toBe(first.requestId);
    expect(leases(models)).toBe(0);
  });

  it("tell the backing whose request it is", async () => {
    const { models, backend } = await withModel();
    const scopes: unknown[] = [];
    for (const backing of backend.backings()) {
      const { generate, chat } = backing;
      backing.generate = (prompt, sampling, request) => {
        scopes.push(request.scope);
        return generate?.(prompt, sampling, request) ?? Promise.reject(new Error("no generate"));
      };
      backing.chat = (messages, sampling, request) => {
        scopes.push(request.scope);
        return chat?.(messages, sampling, request) ?? Promise.reject(new Error("no chat"));
      };
    }

    await models.generate("a", "hello", { scope: "ann" });
    await models.stream("a", "hello", { scope: "ben" }).result;
    await models.chat("a", [{ role: "user", content: "hello" }], { scope: "cid" });
    await models.generate("a", "hello");

    expect(scopes).toEqual(["ann", "ben", "cid", undefined]);
  });

  it("refuse what is not there, by code", async () => {
    const { models } = await startTestSupervisor();

    expect(await rejection(models.generate("nope", "hi"))).toMatchObject({
      code: "not_loaded",
      modelId: "nope",
      retryable: false,
    });
    expect(await rejection(models.chat("@default", [{ role: "user", content: "hi" }]))).toMatchObject({
      code: "no_default_model",
    });
  });

  it("route @default to the default model, also after setDefault", async () => {
    const { models } = await withModel();
    await models.load("b", "b.gguf");

    expect((await models.generate("@default", "hi")).modelId).toBe("a");
    await models.setDefault("b");
    expect((await models.generate("@default", "hi")).modelId).toBe("b");
    expect(await rejection(models.setDefault("nope"))).toMatchObject({ code: "not_loaded" });
    await models.unload("b");
    expect(models.defaultId()).toBeUndefined();
  });

  it("reject at once with the signal's reason; the lease stays until the engine is quiet", async () => {
    const { models, backend } = await withModel();
    const gate = backend.hold("generate", undefined, { ignoreAbort: true });
    const controller = new AbortController();
    const running = rejection(models.generate("a", "hi", { signal: controller.signal }));
    await gate.arrived();
    const reason = { any: "value" };

    controller.abort(reason);

    expect(await running).toBe(reason);
    expect(leases(models)).toBe(1);
    gate.open();
    await settle();
    expect(leases(models)).toBe(0);
  });

  it("do nothing for a signal that was aborted before", async () => {
    const { models, backend } = await withModel();
    const gate = backend.hold("generate");

    const error = await rejection(models.generate("a", "hi", { signal: AbortSignal.abort("gone") }));

    expect(error).toBe("gone");
    expect(gate.arrivals).toBe(0);
    await settle();
    expect(leases(models)).toBe(0);
  });

  it.each([
    ["queue", 1],
    ["prefill", 0],
  ] as const)("time out in phase %s", async (phase, others) => {
    const { models, backend, clock } = await startTestSupervisor();
    await models.load("a", "a.gguf", { parallel: 1 });
    const gate = backend.hold("generate");
    const running = Array.from({ length: others }, () => models.generate("a", "first"));
    const timed = rejection(models.generate("a", "hi", { timeoutMs: 1000 }));
    await gate.arrived(1);

    clock.increment(999);
    await settle();
    clock.increment(1);

    expect(await timed).toMatchObject({ code: "request_timeout", modelId: "a", phase });
    gate.open();
    await Promise.all(running);
    await settle();
    expect(leases(models)).toBe(0);
  });

  it("time out in phase decode when words come too slowly", async () => {
    const { models, backend, clock } = await withModel();
    const gate = backend.hold("token");
    const timed = rejection(models.generate("a", "hi", { timeoutMs: 1000 }));
    await gate.arrived();
    gate.pass();
    await gate.arrived(2);

    clock.increment(1000);

    expect(await timed).toMatchObject({ code: "request_timeout", phase: "decode" });
  });

  it("wrap an engine's failure on one request, and the model goes on", async () => {
    const { models, backend } = await withModel();
    const cause = new Error("Eval has failed");
    backend.fail("generate", cause, undefined, 1);

    expect(await rejection(models.generate("a", "hi"))).toMatchObject({ code: "request_failed", modelId: "a", cause });
    expect((await models.generate("a", "hi")).text).toBe(WORDS);
    expect(leases(models)).toBe(0);
  });

  it("are refused with queue_full beyond maxQueue, at once", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf", { parallel: 1, maxQueue: 1 });
    const gate = backend.hold("generate");
    const running = models.generate("a", "1");
    const waiting = models.generate("a", "2");
    await settle();

    expect(models.info("a")).toMatchObject({ leases: 2, queued: 1 });
    expect(await rejection(models.generate("a", "3"))).toMatchObject({
      code: "queue_full",
      limit: 1,
      queued: 1,
      retryable: true,
    });
    gate.open();
    await Promise.all([running, waiting]);
  });

  it("refuse a prompt that does not fit, and maxTokens beside it", async () => {
    const { models } = await startTestSupervisor();
    await models.load("a", "a.gguf", { contextSize: 8 });

    expect(await rejection(models.generate("a", "1 2 3 4 5 6 7 8"))).toMatchObject({
      code: "context_length_exceeded",
      contextSize: 8,
      promptTokens: 8,
    });
    expect(await rejection(models.generate("a", "1 2 3 4 5 6 7", { maxTokens: 2 }))).toMatchObject({
      code: "context_length_exceeded",
    });
    expect((await models.generate("a", "1 2 3 4 5 6 7")).finishReason).toBe("length");
  });

  it("send no event to the manager's mailbox", async () => {
    const { models } = await withModel();
    const handle = vi.spyOn(Executor.prototype, "handle");

    await models.generate("a", "hi");
    for await (const piece of models.stream("a", "hi")) void piece;
    await models.chat("@default", [{ role: "user", content: "hi" }]);

    expect(handle).not.toHaveBeenCalled();
    await models.setDefault("a"); // the control: a lifecycle call is seen
    expect(handle).toHaveBeenCalledTimes(1);
    handle.mockRestore();
  });
});

describe("stream", () => {
  it("yields the text in pieces, then its result is there", async () => {
    const { models } = await withModel();
    const stream = models.stream("a", "hi");
    const pieces: string[] = [];

    for await (const piece of stream) pieces.push(piece);

    expect(pieces).toEqual(["one", " two", " three", " four", " five", " six", " seven", " eight"]);
    expect(await stream.result).toMatchObject({ text: WORDS, finishReason: "stop" });
    expect(leases(models)).toBe(0);
  });

  it("yields typed parts that end with finish", async () => {
    const { models } = await withModel();
    const types: string[] = [];

    for await (const part of models.streamChat("a", [{ role: "user", content: "hi" }]).parts) types.push(part.type);

    expect(types).toEqual([...Array.from({ length: 8 }, () => "text"), "finish"]);
  });

  it("starts at the first pull, not before", async () => {
    const { models, backend } = await withModel();
    const gate = backend.hold("generate");
    const stream = models.stream("a", "hi");
    await settle();
    expect([gate.arrivals, leases(models)]).toEqual([0, 0]);

    const first = stream[Symbol.asyncIterator]().next();
    await gate.arrived();

    expect(leases(models)).toBe(1);
    gate.open();
    expect(await first).toEqual({ done: false, value: "one" });
  });

  it("starts when its result is read", async () => {
    const { models } = await withModel();

    expect((await models.stream("a", "hi").result).text).toBe(WORDS);
  });

  it("is aborted when its consumer leaves the loop, and gives its lease back", async () => {
    const { models, backend } = await withModel();
    const stream = models.stream("a", "hi");
    const gate = backend.hold("token");
    gate.pass();

    const reading = (async () => {
      for await (const piece of stream) {
        void piece;
        break;
      }
    })();
    await gate.arrived();
    gate.pass();
    await reading;
    await settle();

    expect(leases(models)).toBe(0);
    expect(await rejection(stream.result)).toMatchObject({ name: "AbortError" });
  });

  it("delivers what came before an error, then throws it once", async () => {
    const { models, backend } = await withModel();
    const gate = backend.hold("token");
    const iterator = models.stream("a", "hi")[Symbol.asyncIterator]();
    const first = iterator.next();
    await gate.arrived();
    gate.pass();
    expect(await first).toEqual({ done: false, value: "one" });
    await gate.arrived(2);

    backend.crash("a");

    expect(await rejection(iterator.next())).toMatchObject({ code: "backing_crashed" });
    expect(await iterator.next()).toEqual({ done: true, value: undefined });
  });

  it("throws what is wrong with the call at the first pull", async () => {
    const { models } = await withModel();

    expect(await rejection(models.stream("nope", "hi")[Symbol.asyncIterator]().next())).toMatchObject({
      code: "not_loaded",
    });
    const options = { maxTokens: 1, temprature: 1 };
    expect(await rejection(models.stream("a", "hi", options)[Symbol.asyncIterator]().next())).toMatchObject({
      code: "invalid_option",
      option: "temprature",
      expected: expect.stringContaining('"temperature"'),
    });
  });

  it("has one consumer", async () => {
    const { models } = await withModel();
    const stream = models.stream("a", "hi");
    const iterator = stream[Symbol.asyncIterator]();

    expect(() => stream[Symbol.asyncIterator]()).toThrow(TypeError);
    await iterator.return?.();
  });

  it("never raises an unhandled rejection for a result that nobody looks at", async () => {
    const { models } = await startTestSupervisor();
    const seen: unknown[] = [];
    const listener = (error: unknown) => void seen.push(error);
    process.on("unhandledRejection", listener);

    void models.stream("nope", "hi").result;
    const iterator = models.stream("nope", "hi")[Symbol.asyncIterator]();
    await iterator.next().catch(() => undefined);
    await settle();

    process.off("unhandledRejection", listener);
    expect(seen).toEqual([]);
  });

  it("is cut off by a forced unload with request_aborted", async () => {
    const { models, backend } = await withModel();
    const gate = backend.hold("token");
    const iterator = models.stream("a", "hi")[Symbol.asyncIterator]();
    const first = iterator.next();
    await gate.arrived();

    await models.unload("a", { force: true });

    expect(await rejection(first)).toMatchObject({ code: "request_aborted", modelId: "a" });
  });
});

describe("embed, embedMany and rank", () => {
  it("embed one text like many", async () => {
    const { models } = await startTestSupervisor();
    await models.load("e", "e.gguf", { capabilities: ["embed"] });

    const one = await models.embed("e", "hello");
    const many = await models.embedMany("e", ["hello", "world"]);

    expect(many.embeddings[0]).toEqual(one.embedding);
    expect(Math.hypot(...one.embedding)).toBeCloseTo(1);
    expect(many.truncated).toEqual([false, false]);
    expect(await models.embedMany("e", [])).toMatchObject({ embeddings: [], truncated: [] });
  });

  it("cut and scale vectors as they are asked to, and say what was cut to fit", async () => {
    const { models } = await startTestSupervisor();
    await models.load("e", "e.gguf", { capabilities: ["embed"], contextSize: 8 });
    const whole = (await models.embed("e", "hello world")).embedding;

    const cut = (await models.embed("e", "hello world", { dimensions: 4 })).embedding;
    const raw = (await models.embed("e", "hello world", { dimensions: 4, normalize: false })).embedding;
    const long = await models.embedMany("e", ["short", "one two three four five six seven eight nine"], {
      truncate: true,
    });

    expect(Math.hypot(...whole)).toBeCloseTo(1);
    expect(cut).toHaveLength(4);
    expect(Math.hypot(...cut)).toBeCloseTo(1);
    expect(Math.hypot(...raw)).toBeGreaterThan(1);
    expect(cut).toEqual(raw.map((value) => value / Math.hypot(...raw)));
    expect(long.truncated).toEqual([false, true]);
    expect(await rejection(models.embed("e", "hello", { dimensions: 1000 }))).toMatchObject({
      code: "invalid_option",
      option: "dimensions",
      expected: "at most 16, which is what this model gives",
    });
    expect(await rejection(models.embed("e", "one two three four five six seven eight"))).toMatchObject({
      code: "context_length_exceeded",
    });
    expect(await rejection(models.embed("e", "hello", { dimension: 4, truncate: true } as object))).toMatchObject({
      code: "invalid_option",
      option: "dimension",
    });
  });

  it("rank documents best first, with their place in the question", async () => {
    const { models } = await startTestSupervisor();
    await models.load("r", "r.gguf", { capabilities: ["rank"] });

    const { results } = await models.rank("r", "abc", ["xyz", "cab"]);

    expect(results.map(({ index, document }) => [index, document])).toEqual([
      [1, "cab"],
      [0, "xyz"],
    ]);
  });

  it("refuse a model that was not loaded for it, and generate on an embedding model", async () => {
    const { models } = await withModel();
    await models.load("e", "e.gguf", { capabilities: ["embed"] });

    expect(await rejection(models.embed("a", "text"))).toMatchObject({
      code: "unsupported_capability",
      capability: "embed",
      mode: "server",
    });
    expect(await rejection(models.generate("e", "text"))).toMatchObject({
      code: "unsupported_capability",
      capability: "generate",
      mode: "direct",
    });
    expect(leases(models)).toBe(0);
  });
});

describe("tokenize and detokenize", () => {
  it("are each other's inverse, and refuse ids outside the vocabulary", async () => {
    const { models } = await withModel();

    const tokens = await models.tokenize("a", "hello big world");

    expect(await models.detokenize("a", tokens)).toBe("hello big world");
    expect(await rejection(models.detokenize("a", [9999]))).toMatchObject({ code: "invalid_option", option: "tokens" });
  });
});

describe("acquire", () => {
  it("holds the model with the same calls on it, until it is released", async () => {
    const { models } = await withModel();
    const lease = await models.acquire("a");

    expect(leases(models)).toBe(1);
    expect(await rejection(models.unload("a", { timeoutMs: 0 }))).toMatchObject({ code: "unload_timeout", leases: 1 });
    expect((await lease.generate("hi")).text).toBe(WORDS);
    expect(lease.native).toEqual({ fake: true, modelId: "a" });
    lease.release();
    lease.release();

    expect(leases(models)).toBe(0);
    expect(await rejection(lease.generate("hi"))).toBeInstanceOf(LeaseReleasedError);
    expect(() => lease.native).toThrow(LeaseReleasedError);
  });

  it("is released by using", async () => {
    const { models } = await withModel();
    {
      using lease = await models.acquire("@default");
      expect(lease.modelId).toBe("a");
    }

    expect(leases(models)).toBe(0);
  });

  it("still serves its holder while the model drains, and a call outlives the release", async () => {
    const { models, backend } = await withModel();
    const lease = await models.acquire("a");
    const unloading = models.unload("a");
    const gate = backend.hold("generate");

    const running = lease.generate("hi");
    await gate.arrived();
    lease.release();
    await settle();

    expect(backend.log).toEqual(["start a"]);
    gate.open();
    expect((await running).text).toBe(WORDS);
    await unloading;
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(backend.disposalsInFlight).toBe(0);
  });
});
