import { describe, expect, it, onTestFinished } from "vitest";
import type {
  Backend,
  Backing,
  BackingRequest,
  EngineOptions,
  ModelProfile,
  Sampling,
  StartContext,
} from "../../src/index.js";
import type { GenerationPart, RequestPhase } from "../../src/index.js";
import { TotalQueue } from "../../src/manager/queue-limit.js";
import { GREEDY } from "../support/greedy.js";
import { rejection } from "../support/test-supervisor.js";

/** What a backend brings to be tested: itself, and models of which the right output is known. */
export interface ContractSetup {
  readonly backend: Backend;
  /** Answers any prompt (and chat) with `text`, then ends. */
  readonly talker: { readonly source: string; readonly text: string };
  readonly embedder: string;
  readonly ranker: string;
  readonly missing: string;
}

function request(signal: AbortSignal = new AbortController().signal) {
  const phases: RequestPhase[] = [];
  const parts: GenerationPart[] = [];
  let phase: RequestPhase = "queue";
  const made: BackingRequest = {
    id: "contract",
    signal,
    onPart: (part) => void parts.push(part),
    get phase() {
      return phase;
    },
    set phase(next) {
      phase = next;
      phases.push(next);
    },
  };
  return { request: made, phases, parts };
}

/** The rules of the port, as every backend has to keep them. */
export function describeBackendContract(name: string, setup: () => Promise<ContractSetup> | ContractSetup): void {
  const never = new AbortController().signal;

  async function start(
    source: string,
    wanted: Partial<ModelProfile> & EngineOptions = {},
    context: Partial<StartContext> = {},
  ): Promise<Backing> {
    const { backend } = await setup();
    const model = await backend.resolve(source, {}, never);
    const profile: ModelProfile = {
      mode: "server",
      capabilities: model.defaultCapabilities,
      contextSize: 128,
      parallel: 2,
      threads: 1,
      maxQueue: 4,
      ...wanted,
    };
    const { gpuLayers } = await backend.estimate(model, profile);
    const backing = await backend.start(
      { modelId: "m", incarnation: 1, model, profile, gpuLayers },
      { signal: never, maxThreads: 1, onProgress: () => undefined, ...context },
    );
    onTestFinished(() => backing.dispose());
    return backing;
  }

  async function talk(backing: Backing, prompt: string, sampling: Partial<Sampling> = {}, signal?: AbortSignal) {
    const made = request(signal);
    const completion = await backing.generate?.(prompt, { ...GREEDY, ...sampling }, made.request);
    if (completion === undefined) throw new Error("this backing does not generate");
    return { ...made, completion };
  }

  const inDirect = { mode: "direct", parallel: 1 } as const;

  describe(`the backend port of ${name}`, () => {
    it("tells the machine's memory, RAM first", async () => {
      const { backend } = await setup();

      const [ram] = await backend.devices();

      expect(ram).toMatchObject({ device: "ram", totalBytes: expect.any(Number) });
      expect(ram?.freeBytes).toBeGreaterThan(0);
      expect(ram?.totalBytes).toBeGreaterThanOrEqual(ram?.freeBytes ?? Infinity);
    });

    it("refuses a source that is not there", async () => {
      const { backend, missing, talker } = await setup();

      expect(await rejection(backend.resolve(missing, {}, never))).toMatchObject({
        code: "source_unavailable",
        source: missing,
      });
      expect((await backend.resolve(talker.source, {}, never)).source).toBe(talker.source);
    });

    it("stops resolving when it is aborted", async () => {
      const { backend, talker } = await setup();
      const reason = new Error("enough");

      expect(await rejection(backend.resolve(talker.source, {}, AbortSignal.abort(reason)))).toBe(reason);
    });

    it("tells what each kind of model is for", async () => {
      const { backend, talker, embedder, ranker } = await setup();
      const defaults = async (source: string) => (await backend.resolve(source, {}, never)).defaultCapabilities;

      expect(await defaults(talker.source)).toEqual(["generate", "chat"]);
      expect(await defaults(embedder)).toEqual(["embed"]);
      expect(await defaults(ranker)).toEqual(["rank"]);
    });

    it("estimates what the backing then says it holds", async () => {
      const { backend, talker } = await setup();
      const model = await backend.resolve(talker.source, {}, never);
      const estimate = await backend.estimate(model, {
        mode: "server",
        capabilities: ["generate"],
        contextSize: 128,
        parallel: 2,
        threads: 1,
        maxQueue: 4,
      });

      const held = (await start(talker.source, { capabilities: ["generate"] })).memory();

      const total = (need: typeof held) => need.ramBytes + need.gpuWeightsBytes + need.gpuContextBytes;
      expect(Math.abs(total(estimate) - total(held))).toBeLessThanOrEqual(0.01 * total(held));
    });

    it("gives everything back when a start is aborted before or while it runs", async () => {
      const { backend, talker } = await setup();
      const model = await backend.resolve(talker.source, {}, never);
      const profile: ModelProfile = {
        mode: "server",
        capabilities: ["generate"],
        contextSize: 128,
        parallel: 1,
        threads: 1,
        maxQueue: 1,
      };
      const spec = { modelId: "m", incarnation: 1, model, profile, gpuLayers: 0 };
      const reason = new Error("enough");
      const controller = new AbortController();

      const early = backend.start(spec, {
        signal: AbortSignal.abort(reason),
        maxThreads: 1,
        onProgress: () => undefined,
      });
      expect(await rejection(early)).toBe(reason);
      const late = backend.start(spec, {
        signal: controller.signal,
        maxThreads: 1,
        onProgress: () => controller.abort(reason),
      });
      controller.abort(reason);
      expect(await rejection(late)).toBe(reason);
    });
  });

  describe(`a backing of ${name}`, () => {
    it("has the methods of its capabilities and no others", async () => {
      const { talker, embedder } = await setup();

      const generating = await start(talker.source);
      const embedding = await start(embedder, inDirect);

      expect(
        [generating.generate, generating.chat, generating.embed, generating.rank].map((method) => method !== undefined),
      ).toEqual([true, true, false, false]);
      expect([embedding.generate, embedding.embed].map((method) => method !== undefined)).toEqual([false, true]);
    });

    it.each(["server", "direct"] as const)(
      "generates and chats exactly in %s mode, and tells its phases and usage",
      async (mode) => {
        const { talker } = await setup();
        const backing = await start(talker.source, { mode, parallel: 1 });

        const { completion, phases, parts } = await talk(backing, "hello");
        const chat = await backing.chat?.([{ role: "user", content: "hello" }], GREEDY, request().request);

        expect(completion.text).toBe(talker.text);
        expect(chat?.text.trim()).toBe(talker.text.trim());
        expect(completion.finishReason).toBe("stop");
        expect(completion.usage.completionTokens).toBeGreaterThan(1);
        expect(completion.usage.promptTokens).toBeGreaterThan(0);
        expect(phases.filter((phase) => phase !== "queue")).toEqual(["prefill", "decode"]);
        expect(parts.map((part) => (part.type === "text" ? part.text : "")).join("")).toBe(completion.text);
        expect(Object.values(completion.timings).every((ms) => ms >= 0)).toBe(true);
      },
    );

    it("tells for each token how likely it was, with the parts too, if it is asked", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source);

      const silent = await talk(backing, "hello");
      const { completion, parts } = await talk(backing, "hello", { topLogprobs: 1 });

      expect(silent.completion).not.toHaveProperty("logprobs");
      expect(completion.logprobs).toHaveLength(completion.usage.completionTokens);
      expect(completion.logprobs?.every(({ logprob, top }) => logprob <= 0 && top?.length === 1)).toBe(true);
      expect(parts.flatMap((part) => (part.type === "text" ? (part.logprobs ?? []) : []))).toEqual(completion.logprobs);
    });

    it("stops at maxTokens and at a stop sequence, which it never leaks", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source);
      const secondWord = talker.text.trim().split(" ")[1] ?? "";

      const short = await talk(backing, "hello", { maxTokens: 2 });
      const stopped = await talk(backing, "hello", { stop: [secondWord] });

      expect(short.completion).toMatchObject({ finishReason: "length", usage: { completionTokens: 2 } });
      expect(talker.text.startsWith(short.completion.text)).toBe(true);
      expect(stopped.completion.finishReason).toBe("stop-sequence");
      expect(stopped.completion.text).toBe(talker.text.slice(0, talker.text.indexOf(secondWord)));
      expect(stopped.parts.map((part) => (part.type === "text" ? part.text : "")).join("")).toBe(
        stopped.completion.text,
      );
    });

    it("serves more requests than it has slots, each exactly, and refuses what is beyond its queue at once", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source, { parallel: 2, threads: 1, maxQueue: 4 });

      const results = await Promise.allSettled(Array.from({ length: 8 }, () => talk(backing, "hello")));

      const texts = results.flatMap((result) => (result.status === "fulfilled" ? [result.value.completion.text] : []));
      const errors = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
      expect(texts).toEqual(Array.from({ length: 6 }, () => talker.text));
      expect(errors).toEqual(
        Array.from({ length: 2 }, () => expect.objectContaining({ code: "queue_full", limit: 4, queued: 4 })),
      );
      expect(backing.queued()).toBe(0);
    });

    it("tells a request that waits its place, and asks the limit that all models share", async () => {
      const { talker } = await setup();
      const queueLimit = new TotalQueue(2);
      const backing = await start(talker.source, { parallel: 1 }, { queueLimit });
      const places: unknown[] = [];
      const generate = () => {
        const made = request().request;
        Object.defineProperty(made, "queuePosition", {
          set: (place: unknown) => {
            places.push(place);
          },
        });
        return backing.generate?.("hello", GREEDY, made) ?? Promise.reject(new Error("no generate"));
      };

      const accepted = [generate(), generate(), generate()];
      const error = await rejection(generate());
      expect(places).toEqual([1, 2]);
      expect(error).toMatchObject({ code: "queue_full", limit: 2, queued: 2, modelId: "m" });
      await Promise.all(accepted);

      expect(queueLimit.waiting).toBe(0);
    });

    it.each(["server", "direct"] as const)(
      "lets a request go in %s mode that is aborted while it is told its place",
      async (mode) => {
        const { talker } = await setup();
        const backing = await start(talker.source, { mode, parallel: 1 });
        const controller = new AbortController();
        const reason = new Error("too long a queue");
        const made = request(controller.signal).request;
        const order: unknown[] = [];
        Object.defineProperty(made, "queuePosition", {
          set: (_place: unknown) => {
            controller.abort(reason);
          },
        });

        const running = talk(backing, "hello").then(() => order.push("done"));
        const leaving = rejection(backing.generate?.("hello", GREEDY, made) ?? Promise.resolve());
        await Promise.all([running, leaving.then((error) => order.push(error))]);

        expect(order).toEqual([reason, "done"]);
        expect(backing.queued()).toBe(0);
      },
    );

    it("produces nothing more while the request is paused, and all of it when it goes on", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source, { parallel: 2 });
      let isPaused = false;
      let arrived: () => void = () => undefined;
      const pieces: string[] = [];
      const paused: BackingRequest = {
        ...request().request,
        get isPaused() {
          return isPaused;
        },
        onPart: (part) => {
          if (part.type === "text") pieces.push(part.text);
          isPaused = true;
          arrived();
        },
      };
      const next = () => new Promise<void>((resolve) => (arrived = resolve));
      let moved = next();
      const running = backing.generate?.("hello", GREEDY, paused).finally(() => arrived());
      await moved;

      expect((await talk(backing, "hello")).completion.text).toBe(talker.text); // others go on
      while (pieces.join("") !== talker.text) {
        const before = pieces.length;
        moved = next();
        isPaused = false;
        paused.onResume?.();
        await moved;
        expect(pieces).toHaveLength(before + 1);
      }
      isPaused = false;
      paused.onResume?.();

      expect((await running)?.text).toBe(talker.text);
    });

    it("rejects with the signal's reason, waiting or running, and goes on", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source, { parallel: 1 });
      const [first, second, third] = [new AbortController(), new AbortController(), new AbortController()];
      const reason = new Error("enough");
      third.abort(reason);

      const running = rejection(talk(backing, "hello", {}, first.signal));
      const waiting = rejection(talk(backing, "hello", {}, second.signal));
      const dead = rejection(talk(backing, "hello", {}, third.signal));
      second.abort(reason);
      first.abort(reason);

      expect(await Promise.all([running, waiting, dead])).toEqual([reason, reason, reason]);
      expect((await talk(backing, "hello")).completion.text).toBe(talker.text);
    });

    it("refuses a prompt that does not fit, and maxTokens beside it", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source);
      const long = "hello ".repeat(300);

      expect(await rejection(talk(backing, long))).toMatchObject({ code: "context_length_exceeded", contextSize: 128 });
      expect(await rejection(talk(backing, "hello", { maxTokens: 128 }))).toMatchObject({
        code: "context_length_exceeded",
      });
      expect((await talk(backing, "hello", { maxTokens: 1 })).completion.usage.completionTokens).toBe(1);
    });

    it("makes a prompt fit where that is wanted, and says what it left out", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source);
      const long = "hello ".repeat(300);
      const whole = (await backing.tokenize?.(long))?.length ?? 0;

      const cut = await talk(backing, long, { maxTokens: 28, onOverflow: "truncate-oldest" });
      const full = await talk(backing, "hello", { maxTokens: 1000, onOverflow: "stop" });

      const { promptTokens, truncatedTokens = 0 } = cut.completion.usage;
      expect(promptTokens).toBe(100);
      // an engine may put a token in front
      expect(promptTokens + truncatedTokens - whole).toBeLessThanOrEqual(1);
      expect(cut.completion.text).toBe(talker.text);
      expect(full.completion.text).toBe(talker.text);
      expect(full.completion.usage).not.toHaveProperty("truncatedTokens");
      expect(await rejection(talk(backing, long, { maxTokens: 1000, onOverflow: "stop" }))).toMatchObject({
        code: "context_length_exceeded",
      });
    });

    it("turns text into tokens and back, and refuses ids outside the vocabulary", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source);

      const tokens = (await backing.tokenize?.("hello world")) ?? [];

      expect((await backing.detokenize?.(tokens))?.trim()).toBe("hello world");
      expect(await rejection(backing.detokenize?.([2 ** 30]) ?? Promise.resolve())).toMatchObject({
        code: "invalid_option",
      });
    });

    it("embeds many like one by one, and refuses an empty text", async () => {
      const { embedder } = await setup();
      const backing = await start(embedder, inDirect);
      const embed = async (...texts: string[]) => backing.embed?.(texts, "refuse", request().request);

      const many = await embed("the cat", "a red house");
      const one = await embed("a red house");

      expect(many?.embeddings[1]).toEqual(one?.embeddings[0]);
      for (const vector of many?.embeddings ?? []) expect(Math.hypot(...vector)).toBeGreaterThan(0);
      expect(many?.promptTokens).toBeGreaterThan(one?.promptTokens ?? Infinity);
      expect(await rejection(embed("the cat", ""))).toMatchObject({ code: "invalid_option" });
    });

    it("cuts a text that does not fit where that is wanted, and says which", async () => {
      const { embedder, ranker } = await setup();
      const long = "house ".repeat(400);
      const embedding = await start(embedder, inDirect);
      const ranking = await start(ranker, inDirect);

      const embedded = await embedding.embed?.(["the cat", long], "truncate", request().request);
      const ranked = await ranking.rank?.("the cat", [long, "the cat"], "truncate", request().request);

      expect(embedded?.truncated).toEqual([false, true]);
      expect(ranked?.truncated).toEqual([true, false]);
      const refused = embedding.embed?.([long], "refuse", request().request) ?? Promise.resolve();
      expect(await rejection(refused)).toMatchObject({ code: "context_length_exceeded", contextSize: 128 });
    });

    it("ranks with scores between 0 and 1, in the order of the documents", async () => {
      const { ranker } = await setup();
      const backing = await start(ranker, inDirect);

      const ranked = await backing.rank?.("the cat", ["a red house", "the cat"], "refuse", request().request);

      expect(ranked?.scores).toHaveLength(2);
      expect(ranked?.scores.every((score) => score >= 0 && score <= 1 + 1e-9)).toBe(true);
    });

    it("aborts what is in flight when it is disposed, ends once, and refuses work afterwards", async () => {
      const { talker } = await setup();
      const backing = await start(talker.source, { parallel: 1 });
      const running = Promise.allSettled([talk(backing, "hello"), talk(backing, "hello")]);

      const disposals = [backing.dispose(), backing.dispose()];
      await Promise.all(disposals);

      expect(await backing.exited).toEqual({ reason: "disposed" });
      expect((await running).map((result) => result.status)).toEqual(["rejected", "rejected"]);
      expect(await rejection(talk(backing, "hello"))).toBeInstanceOf(Error);
      expect(backing.queued()).toBe(0);
    });
  });
}
