import { beforeAll, describe, expect, it } from "vitest";
import type { Backing } from "../../../src/backends/backend.js";
import { makeRandomModel, makeRecallModel, makeRecitingModel, recallKeys } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { GREEDY, method, request, start } from "./engine-fixture.js";

const at = useTemporaryFolder();
const TEXT = 'He said: "Größe, 😀 and 日本語!" Then\nhe left. The end, the end.';
let reciting = "";
let recall = "";
let random = "";

beforeAll(async () => {
  [reciting] = await makeRecitingModel(at("reciting.gguf"), { text: TEXT });
  [recall] = await makeRecallModel(at("recall.gguf"));
  [random] = await makeRandomModel(at("random.gguf"));
});

const generate = (backing: Backing, prompt: string, sampling = {}, options = {}) =>
  method(backing, "generate")(prompt, { ...GREEDY, ...sampling }, request(options));

/** A conversation with one key word in it, and text around. */
const prompt = (key: string, filler = 3) =>
  `${"some text that stands before it ".repeat(filler)}the key is ${key} and here is more`;

describe("generate", () => {
  it("gives the model's text, whole, in pieces that are never half a character", async () => {
    const backing = await start(reciting);
    const call = request();

    const result = await method(backing, "generate")("Say it", GREEDY, call);

    expect(result).toMatchObject({ text: TEXT, finishReason: "stop", usage: { cachedTokens: 0 } });
    expect(call.pieces.join("")).toBe(TEXT);
    expect(call.pieces.length).toBeGreaterThan(10);
    expect(call.pieces.filter((piece) => piece === "" || piece.includes("\uFFFD"))).toEqual([]);
    expect(call.phase).toBe("decode");
  });

  it("counts tokens as they were evaluated and sampled, and times every phase", async () => {
    const backing = await start(recall);
    const text = prompt("amber");

    const { usage, timings } = await generate(backing, text, { maxTokens: 4 });

    const promptTokens = (await method(backing, "tokenize")(text)).length + 1;
    expect(usage).toEqual({ promptTokens, completionTokens: 4, cachedTokens: 0 });
    expect(Object.values(timings).every((ms) => Number.isFinite(ms) && ms >= 0)).toBe(true);
    expect(timings.timeToFirstTokenMs).toBeCloseTo(timings.queueMs + timings.prefillMs, 6);
  });

  it("keeps conversations apart that run, join and leave together", async () => {
    const backing = await start(recall, { parallel: 3, contextSize: 512 });

    const results = await Promise.all(
      recallKeys.map((key, index) =>
        generate(backing, prompt(key, index % 7), { maxTokens: index % 4 === 3 ? 2 : undefined }),
      ),
    );

    expect(results.map(({ text }) => text.trim())).toEqual(
      recallKeys.map((key, index) => (index % 4 === 3 ? "your word" : `your word is ${key}`)),
    );
  });

  it("reuses a slot without a trace of what was in it, also after an abort", async () => {
    const backing = await start(recall, { parallel: 1, contextSize: 512 });
    const controller = new AbortController();

    await generate(backing, prompt("amber"));
    const aborted = generate(
      backing,
      prompt("basil"),
      {},
      { signal: controller.signal, onText: () => controller.abort(new Error("enough")) },
    );
    await expect(aborted).rejects.toThrow("enough");
    const { text } = await generate(backing, "there is none in here");

    expect(text.trim()).toBe("your word is nothing");
  });

  it("answers a prompt of many slices as one of few", async () => {
    const backing = await start(recall, { parallel: 2, contextSize: 2048 });

    const [long, short] = await Promise.all([
      generate(backing, prompt("olive", 150)),
      generate(backing, prompt("lemon")),
    ]);

    expect([long.text, short.text].map((text) => text.trim())).toEqual(["your word is olive", "your word is lemon"]);
    expect(long.usage.promptTokens).toBeGreaterThan(128 * 5);
  });

  it("ends at a stop sequence, which is given to nobody", async () => {
    const backing = await start(reciting);
    const call = request();

    const result = await method(backing, "generate")("Say it", { ...GREEDY, stop: ["nowhere", '語!" Th'] }, call);

    expect(result).toMatchObject({ text: TEXT.slice(0, TEXT.indexOf("語!")), finishReason: "stop-sequence" });
    expect(call.pieces.join("")).toBe(result.text);
  });

  it("ends at maxTokens, and gives out what was held back", async () => {
    const backing = await start(reciting);

    const result = await generate(backing, "Say it", { maxTokens: 2, stop: ["Hex"] });

    expect(result).toMatchObject({ text: "He", finishReason: "length", usage: { completionTokens: 2 } });
  });

  it("ends when the slot is full, exactly, and never forgets the beginning instead", async () => {
    const backing = await start(random, { contextSize: 64 });

    const result = await generate(backing, "hello world");
    const { promptTokens, completionTokens } = result.usage;

    expect(result.finishReason).toBe("length");
    expect(promptTokens + completionTokens).toBe(64);
  });

  it("refuses a prompt that fills the slot, or leaves no room for maxTokens; one token less is fine", async () => {
    const backing = await start(random, { contextSize: 64 });
    const { promptTokens } = (await generate(backing, "hello", { maxTokens: 1 })).usage;

    await expect(generate(backing, "hello", { maxTokens: 64 - promptTokens + 1 })).rejects.toMatchObject({
      code: "context_length_exceeded",
      contextSize: 64,
      promptTokens,
    });
    await expect(generate(backing, "hello", { maxTokens: 64 - promptTokens })).resolves.toMatchObject({
      usage: { completionTokens: 64 - promptTokens },
    });
    await expect(generate(backing, "hello ".repeat(70))).rejects.toMatchObject({ code: "context_length_exceeded" });
  });

  it("refuses half a surrogate pair, and takes NUL as the text that it is", async () => {
    const backing = await start(reciting);

    await expect(generate(backing, "half \ud83d here")).rejects.toMatchObject({
      code: "invalid_option",
      option: "prompt",
    });
    await expect(generate(backing, "whole 😀 here")).resolves.toMatchObject({ text: TEXT });
    await expect(generate(backing, "a\0b")).resolves.toMatchObject({ text: TEXT });
    expect(await method(backing, "detokenize")(await method(backing, "tokenize")("a\0b"))).toBe("a\0b");
  });

  it("generates from nothing where the model has a token to begin with", async () => {
    const backing = await start(reciting);

    await expect(generate(backing, "")).resolves.toMatchObject({ text: TEXT, usage: { promptTokens: 1 } });
  });
});

describe("chat", () => {
  it("answers in the model's format, out of the whole conversation", async () => {
    const backing = await start(recall);

    const result = await method(backing, "chat")(
      [
        { role: "system", content: "You remember." },
        { role: "user", content: "my word is velvet" },
        { role: "assistant", content: "noted" },
        { role: "user", content: "what was it?" },
      ],
      GREEDY,
      request(),
    );

    expect(result).toMatchObject({ text: "your word is velvet", finishReason: "stop" });
  });

  it("runs on the same slots as generate", async () => {
    const backing = await start(recall, { parallel: 2 });
    const chat = (key: string) =>
      method(backing, "chat")([{ role: "user", content: `the key is ${key}` }], GREEDY, request());

    const results = await Promise.all([
      chat("amber"),
      generate(backing, prompt("basil")),
      chat("coral"),
      generate(backing, prompt("comet")),
    ]);

    expect(results.map(({ text }) => text.trim())).toEqual(
      ["amber", "basil", "coral", "comet"].map((key) => `your word is ${key}`),
    );
  });

  it("does not take the caller's text for control tokens", async () => {
    const backing = await start(recall);
    const count = async (content: string) =>
      (await method(backing, "chat")([{ role: "user", content }], { ...GREEDY, maxTokens: 1 }, request())).usage
        .promptTokens;

    expect(await count("<|im_end|>")).toBeGreaterThan((await count("x")) + 3);
  });

  it("refuses a conversation without messages", async () => {
    const backing = await start(recall);

    await expect(method(backing, "chat")([], GREEDY, request())).rejects.toMatchObject({
      code: "invalid_option",
      option: "messages",
    });
  });
});
