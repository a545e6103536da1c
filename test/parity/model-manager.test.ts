import { describe, expect, it } from "vitest";
import { DEFAULT_MODEL, ModelSupervisor, SourceUnavailableError } from "../../src/index.js";
import type { Backing, ModelManager, StartContext, StartSpec } from "../../src/index.js";
import { FakeBackend } from "../../src/testing/index.js";
import { rejection, startTestSupervisor } from "../support/test-supervisor.js";

/** An engine that does not hear an abort: its load goes on and ends as if nobody had cancelled it. */
class DeafBackend extends FakeBackend {
  override start(spec: StartSpec, context: StartContext): Promise<Backing> {
    return super.start(spec, { ...context, signal: new AbortController().signal });
  }
}

/** Resolves when some model has gone to `error`. */
function modelError(models: ModelManager): Promise<unknown> {
  return new Promise((resolve) => models.once("model:error", resolve));
}

/** Resolves when some model has gone through its unload. */
function modelUnloading(models: ModelManager): Promise<unknown> {
  return new Promise((resolve) => models.once("model:unloading", resolve));
}

/** The text of one file of the fake backend that says who it is. */
const SPEAKING = { models: { "a.gguf": { reply: "from a" }, "b.gguf": { reply: "from b" } } };

describe("ModelSupervisor.get", () => {
  it("throws not_started with no manager running", () => {
    expect(() => ModelSupervisor.get("nobody")).toThrow(
      expect.objectContaining({ code: "not_started", supervisor: "nobody" }),
    );
    expect(() => ModelSupervisor.get()).toThrow(
      expect.objectContaining({ code: "not_started", supervisor: "default" }),
    );
  });

  it("gives the manager once it is up, and throws again after it has been closed", async () => {
    const { models } = await startTestSupervisor({ name: "up-and-down" });
    const got = ModelSupervisor.get("up-and-down");
    const listed = got.list();

    await models.close();

    expect(got).toBe(models);
    expect(listed).toEqual([]);
    expect(() => ModelSupervisor.get("up-and-down")).toThrow(expect.objectContaining({ code: "not_started" }));
  });
});

describe("load", () => {
  it("loads a server-backed model and reports it ready", async () => {
    const { models } = await startTestSupervisor();

    const info = await models.load("chat", "chat.gguf");

    expect(info).toMatchObject({ id: "chat", status: "ready", mode: "server", source: "chat.gguf" });
    expect(models.info("chat")).toEqual(info);
    expect(models.isLoaded("chat")).toBe(true);
  });

  it("puts a model with the embedding capability into direct mode", async () => {
    const { models } = await startTestSupervisor();

    const info = await models.load("emb", "emb.gguf", { capabilities: ["embed"] });

    expect(info).toMatchObject({ mode: "direct", capabilities: ["embed"] });
  });

  it("honours an explicit mode", async () => {
    const { models } = await startTestSupervisor();

    const direct = await models.load("d", "d.gguf", { mode: "direct" });
    const server = await models.load("s", "s.gguf", { mode: "server", capabilities: ["embed"] });

    expect(direct).toMatchObject({ mode: "direct", capabilities: ["generate", "chat"] });
    expect(server).toMatchObject({ mode: "server", capabilities: ["embed"] });
  });

  it("serves embeddings from a model that was loaded in server mode for them", async () => {
    const { models } = await startTestSupervisor();
    await models.load("both", "both.gguf", { mode: "server", capabilities: ["generate", "embed"] });

    const { embedding } = await models.embed("both", "text");

    expect(embedding.length).toBeGreaterThan(0);
  });

  it("refuses to load the same id twice", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");

    const refused = await rejection(models.load("chat", "chat.gguf"));
    const other = await models.load("other", "chat.gguf");

    expect(refused).toMatchObject({ code: "already_loaded", modelId: "chat", status: "ready" });
    expect(other.status).toBe("ready");
    expect(backend.log).toEqual(["start chat", "start other"]);
  });

  it("rejects with the typed error of the backend, unwrapped, and leaves nothing behind", async () => {
    const { models, backend } = await startTestSupervisor();
    const boom = new SourceUnavailableError("x.gguf", "boom");
    backend.fail("resolve", boom, "x.gguf");

    const failed = await rejection(models.load("x", "x.gguf"));
    const good = await models.load("y", "y.gguf");

    expect(failed).toBe(boom);
    expect(models.info("x")).toBeUndefined();
    expect(good.status).toBe("ready");
  });

  it.each(["resolve", "estimate", "start"] as const)(
    "rejects with load_failed, naming the phase, when %s throws what is not typed",
    async (step) => {
      const { models, backend } = await startTestSupervisor();
      const boom = new Error("boom");
      backend.fail(step, boom, "x.gguf");

      const failed = await rejection(models.load("x", "x.gguf"));

      expect(failed).toMatchObject({ code: "load_failed", modelId: "x", phase: step, cause: boom });
      expect(models.isLoaded("x")).toBe(false);
      expect(models.info("x")).toBeUndefined();
    },
  );

  it("shows its bytes as reserved while it is under way, and gives them back when it fails", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 1_000,
      fake: { models: { "x.gguf": { ramBytes: 600 } } },
    });
    const gate = backend.hold("start");
    const failed = rejection(models.load("x", "x.gguf"));
    await gate.arrived();
    const during = models.memory();

    gate.fail(new Error("no start"));
    await failed;

    expect(during.devices).toMatchObject([
      { device: "total", reservedBytes: 600, measuredBytes: 0, availableBytes: 400 },
    ]);
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0, availableBytes: 1_000 }], unreleased: [] });
  });

  it("does not block other manager calls while it is slow", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("resolve", "slow.gguf");
    const slow = models.load("slow", "slow.gguf");
    await gate.arrived();

    const during = models.info("slow");
    const fast = await models.load("fast", "fast.gguf");
    gate.open();
    const done = await slow;

    expect(during?.status).toBe("loading");
    expect(fast).toMatchObject({ id: "fast", status: "ready" });
    expect(done).toMatchObject({ id: "slow", status: "ready" });
  });

  it("rejects a second load of the same id while the first is in flight", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("resolve");
    const first = models.load("dup", "dup.gguf");
    await gate.arrived();

    const second = await rejection(models.load("dup", "dup.gguf"));
    gate.open();
    const done = await first;

    expect(second).toMatchObject({ code: "already_loaded", modelId: "dup", status: "loading" });
    expect(done).toMatchObject({ id: "dup", status: "ready" });
    expect(backend.log).toEqual(["start dup"]);
  });
});

describe("list", () => {
  it("gives views without handles", async () => {
    const { models } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");

    const list = models.list();

    expect(list).toMatchObject([{ id: "chat", status: "ready" }]);
    expect(JSON.parse(JSON.stringify(list))).toEqual(list);
    for (const handle of ["live", "backing", "native", "settings", "profile", "model"])
      expect(list[0]).not.toHaveProperty(handle);
  });
});

describe("unload", () => {
  it("removes the model and gives its backing back", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");

    await models.unload("chat");

    expect(models.isLoaded("chat")).toBe(false);
    expect(models.info("chat")).toBeUndefined();
    expect(backend.log).toEqual(["start chat", "dispose chat"]);
    expect(backend.liveCopies).toBe(0);
  });

  it("of an unknown model is refused", async () => {
    const { models } = await startTestSupervisor();

    const refused = await rejection(models.unload("nope"));

    expect(refused).toMatchObject({ code: "not_loaded", modelId: "nope" });
  });

  it("of a model in error takes it away, so that its id is free", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");
    const down = modelError(models);
    backend.crash("chat");
    await down;

    await models.unload("chat");
    const gone = models.info("chat");
    const again = await models.load("chat", "other.gguf");

    expect(gone).toBeUndefined();
    expect(again).toMatchObject({ status: "ready", source: "other.gguf" });
  });

  it("during a load cancels it, and the end of that load does not bring the model back", async () => {
    const backend = new DeafBackend({ models: { "a.gguf": { ramBytes: 600 } } });
    const { models } = await startTestSupervisor({ memoryBudget: 1_000, backend });
    const gate = backend.hold("start", "a.gguf");
    const load = rejection(models.load("a", "a.gguf"));
    await gate.arrived();

    const unload = models.unload("a");
    const cancelled = await load;
    const meanwhile = { info: models.info("a"), reservedBytes: models.memory().devices[0]?.reservedBytes };
    gate.open();
    await unload;

    expect(cancelled).toMatchObject({ code: "load_cancelled", modelId: "a" });
    expect(meanwhile).toEqual({ info: undefined, reservedBytes: 600 });
    expect(models.info("a")).toBeUndefined();
    expect(models.memory().devices).toMatchObject([{ reservedBytes: 0 }]);
    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("before a load has claimed its memory leaves nothing claimed", async () => {
    const { models, backend } = await startTestSupervisor({
      memoryBudget: 1_000,
      fake: { models: { "a.gguf": { ramBytes: 600 } } },
    });
    const gate = backend.hold("estimate", "a.gguf");
    const load = rejection(models.load("a", "a.gguf"));
    await gate.arrived();

    const unload = models.unload("a");
    gate.open();
    await Promise.all([load, unload]);

    expect(models.info("a")).toBeUndefined();
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect(backend.log).toEqual([]);
  });

  it.each<["success" | "failure"]>([["success"], ["failure"]])(
    "during a load keeps its late %s away from the next load of the same id",
    async (end) => {
      const backend = new DeafBackend();
      const { models } = await startTestSupervisor({ backend });
      const gate = backend.hold("start", "old.gguf");
      const old = rejection(models.load("a", "old.gguf"));
      await gate.arrived();
      const unload = models.unload("a");
      const fresh = await models.load("a", "new.gguf");

      if (end === "success") gate.open();
      else gate.fail(new Error("too late"));
      await Promise.all([old, unload]);

      expect(models.info("a")).toEqual(fresh);
      expect(fresh).toMatchObject({ status: "ready", source: "new.gguf" });
      expect(backend.liveCopies).toBe(1);
    },
  );

  it("waits for what is in flight without blocking other manager calls", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("busy", "busy.gguf");
    const lease = await models.acquire("busy");
    const unloading = modelUnloading(models);
    const unload = models.unload("busy");
    await unloading;

    const during = models.info("busy");
    const other = await models.load("other", "other.gguf");
    const disposedEarly = backend.log.includes("dispose busy");
    lease.release();
    await unload;

    expect(during?.status).toBe("unloading");
    expect(other.status).toBe("ready");
    expect(disposedEarly).toBe(false);
    expect(backend.log).toEqual(["start busy", "start other", "dispose busy"]);
    expect(models.info("busy")).toBeUndefined();
  });
});

describe("inference", () => {
  it("generate is answered by the server-backed model", async () => {
    const { models } = await startTestSupervisor({ fake: { models: { "chat.gguf": { reply: "hello" } } } });
    await models.load("chat", "chat.gguf");

    const result = await models.generate("chat", "hi");

    expect(result).toMatchObject({ text: "hello", modelId: "chat" });
  });

  it("generate on a missing model is refused with not_loaded", async () => {
    const { models } = await startTestSupervisor();

    const refused = await rejection(models.generate("ghost", "hi"));

    expect(refused).toMatchObject({ code: "not_loaded", modelId: "ghost" });
  });

  it("generate on a model that is still loading is refused with not_ready where it is not to wait", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start");
    const load = models.load("slow", "slow.gguf");
    await gate.arrived();

    const refused = await rejection(models.generate("slow", "hi", { waitForLoad: false }));
    const early = models.isLoaded("slow");
    gate.open();
    await load;

    expect(refused).toMatchObject({ code: "not_ready", modelId: "slow", status: "loading" });
    expect(early).toBe(false);
    expect((await models.generate("slow", "hi")).modelId).toBe("slow");
  });

  it("generates in direct mode as in server mode", async () => {
    const { models } = await startTestSupervisor({ fake: SPEAKING });
    await models.load("s", "a.gguf", { mode: "server" });
    await models.load("d", "b.gguf", { mode: "direct" });

    const texts = [await models.generate("s", "hi"), await models.generate("d", "hi")].map(({ text }) => text);

    expect(texts).toEqual(["from a", "from b"]);
  });

  it("acquire gives the engine's own model in server and in direct mode", async () => {
    const { models } = await startTestSupervisor();
    await models.load("s", "s.gguf", { mode: "server" });
    await models.load("d", "d.gguf", { mode: "direct" });

    using server = await models.acquire("s");
    using direct = await models.acquire("d");
    const refused = await rejection(models.acquire("missing"));

    expect(server.native).toEqual({ fake: true, modelId: "s" });
    expect(direct.native).toEqual({ fake: true, modelId: "d" });
    expect(refused).toMatchObject({ code: "not_loaded", modelId: "missing" });
  });

  it("embed refuses a model that was not loaded for it", async () => {
    const { models } = await startTestSupervisor();
    await models.load("s", "s.gguf");
    await models.load("d", "d.gguf", { mode: "direct" });
    await models.load("e", "e.gguf", { capabilities: ["embed"] });

    const server = await rejection(models.embed("s", "text"));
    const direct = await rejection(models.embed("d", "text"));
    const { embedding } = await models.embed("e", "text");

    expect(server).toMatchObject({ code: "unsupported_capability", modelId: "s", capability: "embed", mode: "server" });
    expect(direct).toMatchObject({ code: "unsupported_capability", modelId: "d", capability: "embed", mode: "direct" });
    expect(embedding.length).toBeGreaterThan(0);
  });

  it("generate and chat refuse a model that was loaded to embed", async () => {
    const { models } = await startTestSupervisor();
    await models.load("e", "e.gguf", { capabilities: ["embed"] });

    const generate = await rejection(models.generate("e", "hi"));
    const chat = await rejection(models.chat("e", [{ role: "user", content: "hi" }]));

    expect(generate).toMatchObject({ code: "unsupported_capability", capability: "generate", mode: "direct" });
    expect(chat).toMatchObject({ code: "unsupported_capability", capability: "chat", mode: "direct" });
  });

  it("stream of a model that is not there fails at the first pull, not when it is made", async () => {
    const { models } = await startTestSupervisor();
    const stream = models.stream("ghost", "hi");
    const chat = models.streamChat("ghost", [{ role: "user", content: "hi" }]);

    const failed = await rejection(stream[Symbol.asyncIterator]().next());
    const chatFailed = await rejection(chat.result);

    expect(failed).toMatchObject({ code: "not_loaded", modelId: "ghost" });
    expect(chatFailed).toMatchObject({ code: "not_loaded", modelId: "ghost" });
  });

  it("stream gives the text of a ready model in pieces", async () => {
    const { models } = await startTestSupervisor({ fake: SPEAKING });
    await models.load("a", "a.gguf");

    const pieces: string[] = [];
    for await (const piece of models.stream("a", "hi")) pieces.push(piece);

    expect(pieces).toEqual(["from", " a"]);
  });
});

describe("default model", () => {
  it("is set by load with default: true, and @default reaches it", async () => {
    const { models } = await startTestSupervisor({ fake: SPEAKING });

    await models.load("chat", "a.gguf", { default: true });
    const { text, modelId } = await models.generate(DEFAULT_MODEL, "hi");

    expect(models.defaultId()).toBe("chat");
    expect({ text, modelId }).toEqual({ text: "from a", modelId: "chat" });
  });

  it("is not set by a load that does not ask for it", async () => {
    const { models } = await startTestSupervisor();

    await models.load("chat", "a.gguf");

    expect(models.defaultId()).toBeUndefined();
  });

  it("is changed by setDefault", async () => {
    const { models } = await startTestSupervisor({ fake: SPEAKING });
    await models.load("a", "a.gguf");
    await models.load("b", "b.gguf");

    await models.setDefault("b");
    const { text } = await models.generate(DEFAULT_MODEL, "hi");

    expect(models.defaultId()).toBe("b");
    expect(text).toBe("from b");
  });

  it("cannot be a missing model", async () => {
    const { models } = await startTestSupervisor();

    const refused = await rejection(models.setDefault("nope"));

    expect(refused).toMatchObject({ code: "not_loaded", modelId: "nope" });
    expect(models.defaultId()).toBeUndefined();
  });

  it("may be a model that is still loading", async () => {
    const { models, backend } = await startTestSupervisor();
    const gate = backend.hold("start");
    const load = models.load("slow", "slow.gguf");
    await gate.arrived();

    await models.setDefault("slow");
    const refused = await rejection(models.generate(DEFAULT_MODEL, "hi", { waitForLoad: false }));
    const waiting = models.generate(DEFAULT_MODEL, "hi");
    gate.open();
    await load;

    expect(refused).toMatchObject({ code: "not_ready", modelId: "slow", status: "loading" });
    expect((await waiting).modelId).toBe("slow");
  });

  it("is cleared when it is unloaded", async () => {
    const { models } = await startTestSupervisor();
    await models.load("a", "a.gguf", { default: true });
    await models.load("b", "b.gguf");
    await models.unload("b");
    const afterOther = models.defaultId();

    await models.unload("a");

    expect(afterOther).toBe("a");
    expect(models.defaultId()).toBeUndefined();
  });

  it("is refused with no_default_model where none is set", async () => {
    const { models } = await startTestSupervisor();
    await models.load("a", "a.gguf");

    const refused = await rejection(models.generate(DEFAULT_MODEL, "hi"));

    expect(refused).toMatchObject({ code: "no_default_model" });
  });

  it("moves to the later of two models that ask for it", async () => {
    const { models } = await startTestSupervisor();
    await models.load("a", "a.gguf", { default: true });

    await models.load("b", "b.gguf", { default: true });

    expect(models.defaultId()).toBe("b");
  });

  it("is not taken from a model by another one whose load fails", async () => {
    const { models, backend } = await startTestSupervisor();
    backend.fail("start", new Error("boom"), "b.gguf");
    await models.load("a", "a.gguf", { default: true });

    await rejection(models.load("b", "b.gguf", { default: true }));

    expect(models.info("b")).toBeUndefined();
    expect(models.defaultId()).toBe("a");
  });

  it("stays the default when it crashes, and does not point at nothing when its reload fails", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf", { default: true });
    const down = modelError(models);
    backend.crash("a");
    await down;
    const afterCrash = models.defaultId();
    const refused = await rejection(models.generate(DEFAULT_MODEL, "hi"));

    backend.fail("start", new Error("boom"));
    await rejection(models.load("a"));

    expect(afterCrash).toBe("a");
    expect(refused).toMatchObject({ code: "not_ready", modelId: "a", status: "error" });
    expect(models.info("a")).toBeUndefined();
    expect(models.defaultId()).toBeUndefined();
  });

  it("has a name that no model can take", async () => {
    const { models } = await startTestSupervisor();

    const refused = await rejection(models.load(DEFAULT_MODEL, "a.gguf"));

    expect(refused).toMatchObject({ code: "invalid_option", option: "id" });
    expect(models.list()).toEqual([]);
  });
});

describe("backing crash", () => {
  it("marks the model as error, with the cause, when its backing goes down", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");
    const down = modelError(models);

    backend.crash("chat", { exitCode: 139, cause: new Error("segmentation fault") });
    const event = await down;
    const refused = await rejection(models.generate("chat", "hi"));

    expect(event).toMatchObject({ modelId: "chat", error: { code: "backing_crashed", exitCode: 139 } });
    expect(models.info("chat")).toMatchObject({ status: "error", error: { code: "backing_crashed" } });
    expect(models.isLoaded("chat")).toBe(false);
    expect(refused).toMatchObject({
      code: "not_ready",
      modelId: "chat",
      status: "error",
      cause: { code: "backing_crashed" },
    });
  });

  it("touches no other model", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("a", "a.gguf");
    await models.load("b", "b.gguf");
    const down = modelError(models);

    backend.crash("a");
    await down;

    expect(models.info("b")?.status).toBe("ready");
    expect((await models.generate("b", "hi")).modelId).toBe("b");
  });

  it("rejects what is in flight with backing_crashed", async () => {
    const { models, backend } = await startTestSupervisor();
    const { incarnation } = await models.load("chat", "chat.gguf");
    const gate = backend.hold("generate");
    const request = rejection(models.generate("chat", "hi"));
    await gate.arrived();

    backend.crash("chat");

    expect(await request).toMatchObject({ code: "backing_crashed", modelId: "chat", incarnation });
  });

  it("is over with the next load, which needs no unload before and no source", async () => {
    const { models, backend } = await startTestSupervisor();
    const first = await models.load("chat", "chat.gguf");
    const down = modelError(models);
    backend.crash("chat");
    await down;

    const second = await models.load("chat");

    expect(second).toMatchObject({ status: "ready", source: "chat.gguf" });
    expect(second.error).toBeUndefined();
    expect(second.incarnation).toBeGreaterThan(first.incarnation);
  });
});

describe("models declared at start", () => {
  it("are loaded from the start, each with its own options", async () => {
    const { models } = await startTestSupervisor({
      models: [
        { id: "a", source: "a.gguf" },
        { id: "b", source: "b.gguf", mode: "direct", default: true },
      ],
    });

    await models.ready();

    expect(models.list()).toMatchObject([
      { id: "a", mode: "server", status: "ready", declared: true },
      { id: "b", mode: "direct", status: "ready", declared: true },
    ]);
    expect(models.defaultId()).toBe("b");
  });

  it("do not hold up the start, nor each other, nor other calls", async () => {
    const backend = new FakeBackend();
    const gate = backend.hold("start", "slow.gguf");

    const { models } = await startTestSupervisor({
      backend,
      models: [
        { id: "slow", source: "slow.gguf" },
        { id: "quick", source: "quick.gguf" },
      ],
    });
    const atOnce = models.list().map(({ id, status }) => [id, status]);
    const other = await models.load("other", "other.gguf");
    const meanwhile = models.info("slow")?.status;
    gate.open();
    await models.ready();

    expect(atOnce).toEqual([
      ["slow", "loading"],
      ["quick", "loading"],
    ]);
    expect(other.status).toBe("ready");
    expect(meanwhile).toBe("loading");
    expect(models.list().map(({ status }) => status)).toEqual(["ready", "ready", "ready"]);
  });

  it("fail one by one: a failure is kept with its cause and stops no other", async () => {
    const { models } = await startTestSupervisor({
      fake: { models: { "good.gguf": {} } },
      models: [
        { id: "bad", source: "bad.gguf" },
        { id: "good", source: "good.gguf" },
      ],
    });

    const failed = await rejection(models.ready());

    expect(failed).toBeInstanceOf(AggregateError);
    expect(failed).toMatchObject({ errors: [{ code: "source_unavailable", source: "bad.gguf" }] });
    expect(models.info("bad")).toMatchObject({
      status: "error",
      declared: true,
      error: { code: "source_unavailable" },
    });
    expect(models.info("good")?.status).toBe("ready");
  });

  it("cannot have one id twice", async () => {
    const twice = [
      { id: "a", source: "a.gguf" },
      { id: "a", source: "b.gguf" },
    ];

    const refused = await rejection(startTestSupervisor({ models: twice }));

    expect(refused).toMatchObject({ code: "invalid_option", option: "models" });
  });
});
