import type { Backing, BackingRequest } from "../../../src/backends/backend.js";
import type { Priority } from "../../../src/inference.js";
import { LlamaModel } from "node-llama-cpp";
import { beforeAll, describe, expect, it, onTestFinished, vi } from "vitest";
import {
  makeEmbeddingModel,
  makeRandomModel,
  makeRankingModel,
  makeRecallModel,
} from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { GREEDY, method, request, start } from "./engine-fixture.js";

const at = useTemporaryFolder();
let encoder = "";
let ranker = "";
let recall = "";
let random = "";

beforeAll(async () => {
  [encoder] = await makeEmbeddingModel(at("encoder.gguf"), { words: ["river", "stone", "water"] });
  [ranker] = await makeRankingModel(at("ranker.gguf"), { words: ["river", "stone", "water", "cloud"] });
  [recall] = await makeRecallModel(at("recall.gguf"));
  [random] = await makeRandomModel(at("random.gguf"));
});

/** Calls that refuse what does not fit, as they do by default. */
const embedder = (backing: Backing) => {
  const embed = method(backing, "embed");
  return (texts: readonly string[], made: BackingRequest) => embed(texts, "refuse", made);
};
const ranking = (backing: Backing) => {
  const rank = method(backing, "rank");
  return (query: string, documents: readonly string[], made: BackingRequest) => rank(query, documents, "refuse", made);
};

const length = (vector: readonly number[] = []) => Math.hypot(...vector);
const cosine = (a: readonly number[] = [], b: readonly number[] = []) =>
  a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0) / (length(a) * length(b));

describe("embed", () => {
  it("gives vectors that tell like from unlike, and counts the tokens", async () => {
    const backing = await start(encoder);

    const { embeddings, promptTokens } = await embedder(backing)(
      ["river stone water", "water stone river", "he she they"],
      request(),
    );

    expect(cosine(embeddings[0], embeddings[1])).toBeGreaterThan(cosine(embeddings[0], embeddings[2]));
    expect(promptTokens).toBe(3 * (3 + 2));
  });

  it("gives for a list what it gives one by one, also when many ask at once", async () => {
    const backing = await start(encoder);
    const texts = ["river", "stone water", "the river and the stone", "water ".repeat(50)];
    const embed = embedder(backing);

    const [list, ...single] = await Promise.all([
      embed(texts, request()),
      ...texts.map((text) => embed([text], request())),
    ]);

    expect(list.embeddings).toEqual(single.map(({ embeddings }) => embeddings[0]));
  });

  it("gives the same vectors, in order, from several contexts as from one", async () => {
    const texts = Array.from(
      { length: 30 },
      (_, index) => `river ${"water ".repeat(index % 7)}${"stone ".repeat(index % 3)}`,
    );
    const one = await start(encoder);
    const two = await start(encoder, { threads: 2 }, { maxThreads: 2 });

    const list = await embedder(two)(texts, request());
    const single = await Promise.all(texts.map((text) => embedder(two)([text], request())));

    expect(list).toEqual(await embedder(one)(texts, request()));
    expect(list.embeddings).toEqual(single.map(({ embeddings }) => embeddings[0]));
    expect(new Set(list.embeddings.map(String)).size).toBe(new Set(texts.map((text) => text.trim())).size);
  });

  it("bounds the calls that are there, and tells how many are more than it can do at a time", async () => {
    const backing = await start(encoder, { threads: 2, maxQueue: 1 }, { maxThreads: 2 });
    const call = () => embedder(backing)(["river"], request());
    const calls = [call(), call(), call()];

    expect(backing.queued()).toBe(1);
    await expect(call()).rejects.toMatchObject({ code: "queue_full", limit: 1, retryAfterMs: 100 });
    await expect(Promise.all(calls)).resolves.toHaveLength(3);
    expect(backing.queued()).toBe(0);
  });

  it("lets a disposal wait for the texts in flight of every context", async () => {
    const backing = await start(encoder, { threads: 2 }, { maxThreads: 2 });
    const texts = Array.from({ length: 200 }, () => "river stone water");
    const calls = [embedder(backing)(texts, request()), embedder(backing)(texts, request())];
    const outcomes = Promise.allSettled(calls);
    await embedder(backing)(["river"], request());

    await backing.dispose();

    for (const outcome of await outcomes) expect(outcome).toMatchObject({ reason: { code: "request_aborted" } });
  });

  it("embeds with a generative model too", async () => {
    const backing = await start(random, { capabilities: ["embed"] });

    const { embeddings } = await embedder(backing)(["hello world"], request());

    expect(length(embeddings[0])).toBeGreaterThan(0);
    expect(backing.generate).toBeUndefined();
  });

  it("refuses an empty text and one that does not fit, before it evaluates any", async () => {
    const backing = await start(encoder, { contextSize: 128 });
    const embed = embedder(backing);

    await expect(embed(["river", ""], request())).rejects.toMatchObject({ code: "invalid_option", option: "text" });
    await expect(embed(["river", "water ".repeat(126)], request())).rejects.toMatchObject({
      code: "context_length_exceeded",
      contextSize: 128,
      promptTokens: 128,
    });
    await expect(embed(["water ".repeat(125)], request())).resolves.toMatchObject({ promptTokens: 127 });
  });

  it("cuts a text at its end where that is wanted, says so, and gives what the cut text gives", async () => {
    const backing = await start(encoder, { contextSize: 128 });
    const embed = method(backing, "embed");

    const cut = await embed(["river", "water ".repeat(300)], "truncate", request());
    const short = await embed(["water ".repeat(125)], "truncate", request());

    expect(cut).toMatchObject({ truncated: [false, true], promptTokens: 3 + 127 });
    expect(short.truncated).toEqual([false]);
    expect(cut.embeddings[1]).toEqual(short.embeddings[0]);
  });

  it("stops between two texts when the signal aborts", async () => {
    const backing = await start(encoder);
    const controller = new AbortController();
    const embed = embedder(backing);
    const long = embed(
      Array.from({ length: 500 }, () => "river stone water"),
      request({ signal: controller.signal }),
    );
    await embed(["river"], request());
    controller.abort(new Error("enough"));

    await expect(long).rejects.toThrow("enough");
    await expect(embed(["river"], request())).resolves.toBeDefined();
  });

  it("takes turns text by text, so that a long list does not keep a short one waiting", async () => {
    const backing = await start(encoder);
    const order: string[] = [];
    const embed = embedder(backing);

    await Promise.all([
      embed(
        Array.from({ length: 50 }, () => "river"),
        request(),
      ).then(() => order.push("long")),
      embed(["stone"], request()).then(() => order.push("short")),
    ]);

    expect(order).toEqual(["short", "long"]);
  });
});

describe("rank", () => {
  it("scores between 0 and 1, more for what has more in common, in the order of the documents", async () => {
    const backing = await start(ranker);

    const { scores, promptTokens } = await ranking(backing)(
      "river stone water",
      ["cloud cloud cloud", "river stone water", "river cloud cloud"],
      request(),
    );

    expect(scores.every((score) => score >= 0 && score <= 1)).toBe(true);
    expect(scores[1]).toBeGreaterThan(scores[2] ?? 1);
    expect(scores[1]).toBeGreaterThan(scores[0] ?? 1);
    expect(promptTokens).toBeGreaterThan(18);
    expect(backing.embed).toBeUndefined();
  });

  it("scores the same, in order, on several contexts as on one", async () => {
    const documents = Array.from(
      { length: 20 },
      (_, index) => `${"river ".repeat(index % 5)}cloud ${"stone ".repeat(index % 2)}`,
    );
    const one = await start(ranker);
    const two = await start(ranker, { threads: 2 }, { maxThreads: 2 });
    const expected = await ranking(one)("river stone water", documents, request());

    expect(await ranking(two)("river stone water", documents, request())).toEqual(expected);
    expect(new Set(expected.scores).size).toBeGreaterThan(4);
  });

  it("refuses a document that does not fit and an empty query; no documents are no scores", async () => {
    const backing = await start(ranker, { contextSize: 64 });
    const rank = ranking(backing);

    await expect(rank("river", ["stone", "water ".repeat(70)], request())).rejects.toMatchObject({
      code: "context_length_exceeded",
    });
    await expect(rank("", ["stone"], request())).rejects.toMatchObject({ code: "invalid_option", option: "query" });
    await expect(rank("river", ["stone", ""], request())).rejects.toMatchObject({ option: "documents" });
    await expect(rank("river", [], request())).resolves.toEqual({ scores: [], truncated: [], promptTokens: 0 });
  });
});

describe("rank with texts that are cut", () => {
  it("scores the part that fits and says so; a query that leaves no room is refused all the same", async () => {
    const backing = await start(ranker, { contextSize: 64 });
    const rank = method(backing, "rank");

    const { scores, truncated } = await rank(
      "river",
      [`river ${"cloud ".repeat(200)}`, "river"],
      "truncate",
      request(),
    );

    expect(truncated).toEqual([true, false]);
    expect(scores).toHaveLength(2);
    await expect(rank("water ".repeat(100), ["river"], "truncate", request())).rejects.toMatchObject({
      code: "context_length_exceeded",
    });
  });
});

describe("generate in direct mode", () => {
  it("answers each call from a context of its own, one after the other", async () => {
    const backing = await start(recall, { mode: "direct", capabilities: ["generate", "chat"] });
    const generate = (key: string) => method(backing, "generate")(`the key is ${key}`, GREEDY, request());

    const results = await Promise.all(["amber", "basil", "coral"].map(generate));
    const nothing = await method(backing, "generate")("there is none", GREEDY, request());
    const chat = await method(backing, "chat")([{ role: "user", content: "the key is olive" }], GREEDY, request());

    expect([...results, nothing, chat].map(({ text }) => text.trim())).toEqual(
      ["amber", "basil", "coral", "nothing", "olive"].map((key) => `your word is ${key}`),
    );
    expect(results[2]?.timings.queueMs).toBeGreaterThan(results[0]?.timings.queueMs ?? Infinity);
  });

  it("counts the context that comes and goes as held all the time", async () => {
    const backing = await start(random, { mode: "direct", capabilities: ["generate"] });
    const before = backing.memory();
    let during;
    await method(backing, "generate")(
      "hello",
      { ...GREEDY, maxTokens: 2 },
      request({ onText: () => (during = backing.memory()) }),
    );

    expect(during).toEqual(before);
    expect(backing.memory()).toEqual(before);
  });

  it("fails the call whose context cannot be made, and no other", async () => {
    const backing = await start(random, { mode: "direct", capabilities: ["generate"] });
    const generate = () => method(backing, "generate")("hello", { ...GREEDY, maxTokens: 2 }, request());
    if (!(backing.native instanceof LlamaModel)) throw new TypeError("there is no native model");
    const creation = vi.spyOn(backing.native, "createContext").mockRejectedValueOnce(new Error("out of memory"));
    onTestFinished(() => creation.mockRestore());

    const [failed, next] = await Promise.allSettled([generate(), generate()]);

    expect(failed).toMatchObject({ status: "rejected", reason: { message: "out of memory" } });
    expect(next).toMatchObject({ status: "fulfilled" });
  });

  it("bounds the calls that wait, and lets one leave", async () => {
    const backing = await start(random, { mode: "direct", capabilities: ["generate"], maxQueue: 1 });
    const controller = new AbortController();
    const generate = (options = {}) =>
      method(backing, "generate")("hello", { ...GREEDY, maxTokens: 5 }, request(options));
    const first = generate();
    const second = generate({ signal: controller.signal });

    await Promise.resolve();
    expect(backing.queued()).toBe(1);
    await expect(generate()).rejects.toMatchObject({ code: "queue_full", limit: 1 });
    controller.abort("left");
    await expect(second).rejects.toBe("left");
    expect(backing.queued()).toBe(0);
    await expect(Promise.all([first, generate()])).resolves.toHaveLength(2);
  });

  it("lets the more urgent of the calls that wait go first, and tells each its place", async () => {
    const backing = await start(random, { mode: "direct", capabilities: ["generate"] });
    const order: string[] = [];
    const positions: (number | undefined)[] = [];
    const generate = async (priority: Priority) => {
      const made: BackingRequest = { ...request(), priority };
      const done = method(backing, "generate")("hello", { ...GREEDY, maxTokens: 1 }, made);
      await Promise.resolve();
      positions.push(made.queuePosition);
      await done;
      order.push(priority);
    };

    await Promise.all([generate("system"), generate("background"), generate("interactive")]);

    expect(order).toEqual(["system", "interactive", "background"]);
    expect(positions).toEqual([undefined, 1, 1]);
  });
});

describe("server mode with embed", () => {
  it("generates and embeds at once on the same weights", async () => {
    const backing = await start(recall, { mode: "server", capabilities: ["generate", "embed"], parallel: 2 });
    const generate = (key: string) => method(backing, "generate")(`the key is ${key}`, GREEDY, request());
    const embed = () => embedder(backing)(["the key is amber", "more text"], request());
    const alone = await embed();

    const [a, one, b, two] = await Promise.all([generate("amber"), embed(), generate("basil"), embed()]);

    expect([a.text.trim(), b.text.trim()]).toEqual(["your word is amber", "your word is basil"]);
    expect([one, two]).toEqual([alone, alone]);
    expect(backing.chat).toBeUndefined();
  });
});
