import { beforeAll, describe, expect, it } from "vitest";
import { ModelSupervisor } from "../../../src/index.js";
import type { GenerateOptions, ModelManager } from "../../../src/index.js";
import { makeEmbeddingModel, makeRankingModel, makeRecitingModel } from "../../../src/testing/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { rejection } from "../../support/test-supervisor.js";

const at = useTemporaryFolder();
const ANSWER = "all is well";
const MEGABYTE = "hello world ".repeat(2 ** 20 / 12);
let models: ModelManager;

beforeAll(async () => {
  models = await ModelSupervisor.start({ name: "odd-inputs", memoryBudget: "1GiB", maxThreads: 1 });
  await makeRecitingModel(at("talker.gguf"), { text: ANSWER });
  await makeEmbeddingModel(at("encoder.gguf"), { words: ["river", "stone"] });
  await makeRankingModel(at("ranker.gguf"), { words: ["river", "stone"] });
  await models.load("talker", at("talker.gguf"), { contextSize: 256, parallel: 1 });
  await models.load("encoder", at("encoder.gguf"), { contextSize: 128 });
  await models.load("ranker", at("ranker.gguf"), { contextSize: 128 });
  return () => models.close({ timeoutMs: 0 });
});

type Call = (text: string) => Promise<unknown>;

const generate: Call = async (text) => (await models.generate("talker", text)).text;
const chat: Call = async (content) => (await models.chat("talker", [{ role: "user", content }])).text;
const embed: Call = async (text) => (await models.embed("encoder", text)).embedding.length;
const embedCut: Call = async (text) => (await models.embed("encoder", text, { truncate: true })).truncated;
const ask: Call = async (query) => (await models.rank("ranker", query, ["stone"])).results.length;
const rank: Call = async (text) => (await models.rank("ranker", "stone", [text])).results.length;
const rankCut: Call = async (text) =>
  (await models.rank("ranker", "stone", [text], { truncate: true })).results[0]?.truncated;
/** There and back. */
const tokenize: Call = async (text) =>
  (await models.detokenize("talker", await models.tokenize("talker", text))) === text;

/** The code of the error that a call rejects with, or what it gives. */
const outcome = (call: Promise<unknown>) =>
  call.catch((error: unknown) => (error instanceof Error && "code" in error ? error.code : error));

describe.each([
  [
    "generate",
    generate,
    { empty: ANSWER, nul: ANSWER, onlyNul: ANSWER, spaces: ANSWER, long: "context_length_exceeded" },
  ],
  ["chat", chat, { empty: ANSWER, nul: ANSWER, onlyNul: ANSWER, spaces: ANSWER, long: "context_length_exceeded" }],
  [
    "embed",
    embed,
    {
      empty: "invalid_option",
      nul: 64,
      onlyNul: "invalid_option",
      spaces: "invalid_option",
      long: "context_length_exceeded",
    },
  ],
  [
    "embed with truncate",
    embedCut,
    { empty: "invalid_option", nul: false, onlyNul: "invalid_option", spaces: "invalid_option", long: true },
  ],
  [
    "the query of rank",
    ask,
    { empty: "invalid_option", nul: 1, onlyNul: 1, spaces: 1, long: "context_length_exceeded" },
  ],
  [
    "a document of rank",
    rank,
    { empty: "invalid_option", nul: 1, onlyNul: 1, spaces: 1, long: "context_length_exceeded" },
  ],
  [
    "a document of rank with truncate",
    rankCut,
    { empty: "invalid_option", nul: false, onlyNul: false, spaces: false, long: true },
  ],
  ["tokenize and detokenize", tokenize, { empty: true, nul: true, onlyNul: true, spaces: true, long: true }],
] satisfies [string, Call, Record<string, unknown>][])("%s", (_, call, expected) => {
  it("answers or says what is wrong with a text that is odd", async () => {
    expect({
      empty: await outcome(call("")),
      nul: await outcome(call("river\0stone")),
      onlyNul: await outcome(call("\0\0\0")),
      spaces: await outcome(call("   ")),
      long: await outcome(call(MEGABYTE)),
    }).toEqual(expected);
  });

  it("refuses a lone surrogate, and what is no text", async () => {
    for (const text of ["\ud83d", "a\udc00b", ...notTexts]) expect(await outcome(call(text))).toBe("invalid_option");
  });
});

/** For callers without types. */
const notTexts: string[] = JSON.parse("[null, 7, {}, []]");

describe("numbers that are none, or below 0", () => {
  const bad = [Number.NaN, Infinity, -Infinity, -1];

  it.each<keyof GenerateOptions>([
    "maxTokens",
    "temperature",
    "topK",
    "topP",
    "minP",
    "seed",
    "repeatPenalty",
    "topLogprobs",
  ])("as %s are refused by generate and chat", async (option) => {
    for (const value of bad) {
      const options = { logprobs: true, [option]: value };
      const refused = { code: "invalid_option", option };
      expect(await rejection(models.generate("talker", "hello", options))).toMatchObject(refused);
      expect(await rejection(models.chat("talker", [{ role: "user", content: "hello" }], options))).toMatchObject(
        refused,
      );
    }
  });

  it("are refused by every other call that takes one", async () => {
    for (const value of bad) {
      const ofTime = value === Infinity ? -2 : value; // no limit is a limit that can be meant
      for (const call of [
        models.generate("talker", "hello", { logitBias: { 300: value - 200 } }),
        models.generate("talker", "hello", { timeoutMs: ofTime }),
        models.embed("encoder", "river", { dimensions: value }),
        models.embed("encoder", "river", { timeoutMs: ofTime }),
        models.rank("ranker", "river", ["stone"], { timeoutMs: ofTime }),
        models.detokenize("talker", [value]),
      ])
        expect(await outcome(call)).toBe("invalid_option");
    }
    expect(await outcome(models.detokenize("talker", [2 ** 31 - 1]))).toBe("invalid_option");
    expect(await outcome(models.embed("encoder", "river", { dimensions: 65 }))).toBe("invalid_option");
  });

  it("harm nobody: the models answer as before", async () => {
    expect(await Promise.all([generate("hello"), embed("river"), rank("river")])).toEqual([ANSWER, 64, 1]);
  });
});
