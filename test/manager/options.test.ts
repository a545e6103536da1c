import { describe, expect, it } from "vitest";
import {
  checkCloseOptions,
  checkLoadOptions,
  checkModelId,
  checkNoModelOptions,
  checkSource,
  checkSupervisorOptions,
  checkUnloadOptions,
  loadSettings,
} from "../../src/manager/options.js";
import {
  checkEmbedOptions,
  checkGenerateOptions,
  checkRankOptions,
  checkRequestOptions,
  checkText,
  checkTexts,
  checkTokens,
} from "../../src/manager/request-options.js";
import { checkMessages } from "../../src/manager/chat-options.js";
import { profileOf } from "../../src/manager/profile.js";
import { FakeBackend } from "../../src/testing/index.js";

/** The typed error of a check, or what it returned. */
function outcome(check: () => unknown): unknown {
  try {
    return check();
  } catch (error) {
    return error;
  }
}

/** A bias for so many tokens. */
const biasOf = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, token) => [token, 1]));

const refused = (option: string) => expect.objectContaining({ code: "invalid_option", option });

describe("load options", () => {
  it.each([
    ["capabilities", [["generate"], ["embed", "rank"]], [[], ["fly"], "generate"]],
    ["mode", ["server", "direct"], ["fast", 1]],
    ["default", [true, false], ["yes", 1]],
    ["gpuLayers", ["auto", "max", 0, 33], [-1, 1.5, "all", Number.NaN]],
    ["splitMode", ["none", "layer", "row"], ["tensor"]],
    ["tensorSplit", [[], [1, 0], [0.3, 0.7]], [[0, 0], [-1], [Number.NaN], 1]],
    ["mainGpu", [0, 3], [-1, 0.5, "gpu:0"]],
    ["offloadKqv", [true, false], [0]],
    ["contextSize", [8, 4096, 2 ** 24], [0, 7, -1, 1.5, Infinity, "4096", 2 ** 24 + 1]],
    ["parallel", [1, 256], [0, 257, 1.5]],
    ["kvCacheType", ["f16", "q8_0", "q4_0"], ["f32"]],
    ["batchSize", [1, 512], [0, -1, 2 ** 16 + 1]],
    ["flashAttention", [true], ["auto"]],
    ["checkTensors", [true, false], ["yes", 1]],
    ["threads", [1, 8], [0, 2000]],
    ["maxQueue", [0, 64], [-1, Infinity]],
    ["ttlMs", [0, 600_000, Infinity], [-1, Number.NaN, 2 ** 31, "10s"]],
    ["evictable", [true, false], ["no", 0]],
    ["evictionPriority", [-1e9, 0, 1.5, 1e9], [-2e9, Number.NaN, Infinity, "high"]],
    ["warmUp", [true, false], ["yes", 1]],
    ["signal", [new AbortController().signal], [{}, true]],
    ["onProgress", [() => undefined], ["log"]],
  ])("take %s as it must be, and refuse it otherwise", (name, good, bad) => {
    for (const value of good) expect(checkLoadOptions({ [name]: value })).toEqual({ [name]: value });
    for (const value of bad)
      expect(outcome(() => checkLoadOptions({ [name]: value }))).toMatchObject({ code: "invalid_option" });
    expect(checkLoadOptions({ [name]: undefined })).toEqual({ [name]: undefined });
  });

  it.each([
    ["paralel", '"parallel"'],
    ["context_size", '"contextSize"'],
    ["gpulayers", '"gpuLayers"'],
  ])("name the nearest option for %s", (typo, suggestion) => {
    expect(outcome(() => checkLoadOptions({ [typo]: 1 }))).toMatchObject({
      option: typo,
      expected: expect.stringContaining(suggestion),
    });
  });

  it("name all options where none is near", () => {
    expect(outcome(() => checkLoadOptions({ xyzzy: 1 }))).toMatchObject({
      expected: expect.stringContaining("capabilities, mode, default"),
    });
  });

  it.each(["lockWeights", "demandPaging", "isolation"])(
    "refuse %s, which is not built yet, instead of ignoring it",
    (name) => {
      expect(outcome(() => checkLoadOptions({ [name]: true }))).toEqual(refused(name));
    },
  );

  it("other than default are refused without a source, where they would have no effect", () => {
    expect(outcome(() => checkNoModelOptions({ parallel: 2 }))).toEqual(refused("parallel"));
    expect(outcome(() => checkNoModelOptions({ default: true, parallel: undefined }))).toBeUndefined();
  });
});

describe("the profile of a model", () => {
  const model = {
    source: "m",
    sizeBytes: 1,
    supports: ["generate", "chat", "embed"],
    defaultCapabilities: ["generate", "chat"],
    trainedContextSize: 32_768,
  } as const;

  it("has these defaults", () => {
    expect(profileOf("m", loadSettings({}, Infinity), model, 3)).toMatchObject({
      mode: "server",
      capabilities: ["generate", "chat"],
      contextSize: 4096,
      parallel: 4,
      threads: 3,
      maxQueue: 64,
    });
    expect(profileOf("m", loadSettings({}, Infinity), { ...model, trainedContextSize: 128 }, 3)).toMatchObject({
      contextSize: 128,
    });
  });

  it.each([
    [{ capabilities: ["embed"] }, { mode: "direct", parallel: 3, threads: 3 }],
    [
      { capabilities: ["embed"], parallel: 2 },
      { mode: "direct", parallel: 2, threads: 3 },
    ],
    [
      { capabilities: ["chat", "embed"], threads: 1 },
      { mode: "direct", parallel: 1, threads: 1 },
    ],
    [
      { capabilities: ["generate", "embed"], mode: "server" },
      { mode: "server", parallel: 4 },
    ],
    [
      { mode: "direct", parallel: 8 },
      { mode: "direct", parallel: 1 },
    ],
    [
      { contextSize: 64, parallel: 2, maxQueue: 0 },
      { contextSize: 64, parallel: 2, maxQueue: 0 },
    ],
    [{ capabilities: ["chat", "chat"] }, { capabilities: ["chat"] }],
  ] as const)("of %j is %j", (options, expected) => {
    expect(profileOf("m", loadSettings(options, Infinity), model, 3)).toMatchObject(expected);
  });

  it("is refused for what the file cannot do", () => {
    expect(outcome(() => profileOf("m", loadSettings({ capabilities: ["rank"] }, Infinity), model, 3))).toMatchObject({
      code: "unsupported_capability",
      capability: "rank",
    });
  });
});

describe("sampling options", () => {
  it("have these defaults", () => {
    expect(checkGenerateOptions({}).sampling).toEqual({
      maxTokens: undefined,
      temperature: 0.8,
      topK: 40,
      topP: 0.95,
      minP: 0.05,
      seed: undefined,
      stop: [],
      repeatPenalty: 1,
      logitBias: undefined,
      topLogprobs: undefined,
      jsonSchema: undefined,
      grammar: undefined,
    });
  });

  it.each([
    ["maxTokens", [1, 512], [0, -1, 1.5, Number.NaN, Infinity, "5"]],
    ["temperature", [0, 0.8, 2], [-0.1, Number.NaN, Infinity]],
    ["topK", [0, 40], [-1, 0.5]],
    ["topP", [0, 1], [1.1, -1, Number.NaN]],
    ["minP", [0, 1], [2]],
    ["seed", [0, 2 ** 32 - 1], [-1, 2 ** 32, 0.5]],
    ["stop", ["x", ["a", "b"], []], ["", [""], [1], "\uD800", Array.from({ length: 17 }, () => "x")]],
    ["repeatPenalty", [1, 1.1], [0, -1, Number.NaN]],
    ["logitBias", [{}, { 5: -100, 7: 0.5 }], [{ 5: 101 }, { 5: Number.NaN }, { 5: "1" }, { a: 1 }, { [-1]: 1 }, [1]]],
    ["logitBias", [biasOf(1024)], [biasOf(1025), { 1.5: 1 }, { 1e10: 1 }, new Map([[5, 1]]), null]],
    ["logprobs", [true, false], [1, "yes"]],
    ["jsonSchema", [{ type: "string" }, {}], ["{}", [], null, 1]],
    ["grammar", ['root ::= "a"'], ["", " ", 1, "\uD800", {}]],
    ["scope", ["", "user 7", "x".repeat(200)], ["x".repeat(201), 7, null]],
    ["timeoutMs", [0, 1000, Infinity], [-1, Number.NaN, 2 ** 31]],
    ["signal", [new AbortController().signal], [{}]],
  ])("take %s as it must be, and refuse it otherwise", (name, good, bad) => {
    for (const value of good) expect(outcome(() => checkGenerateOptions({ [name]: value }))).toHaveProperty("sampling");
    for (const value of bad)
      expect(outcome(() => checkGenerateOptions({ [name]: value }))).toMatchObject({ code: "invalid_option" });
  });

  it("take topLogprobs beside logprobs, where alone it would have no effect", () => {
    const topLogprobs = (options: object) => outcome(() => checkGenerateOptions(options));

    expect(topLogprobs({ logprobs: true, topLogprobs: 20 })).toMatchObject({ sampling: { topLogprobs: 20 } });
    expect(topLogprobs({ logprobs: true })).toMatchObject({ sampling: { topLogprobs: 0 } });
    expect(topLogprobs({ logprobs: false })).toMatchObject({ sampling: { topLogprobs: undefined } });
    for (const wrong of [{ topLogprobs: 1 }, { logprobs: false, topLogprobs: 1 }, { logprobs: true, topLogprobs: 21 }])
      expect(topLogprobs(wrong)).toEqual(refused("topLogprobs"));
  });

  it("hand logit biases on as pairs", () => {
    expect(checkGenerateOptions({ logitBias: { 7: 0.5, 5: -100 } }).sampling.logitBias).toEqual([
      [5, -100],
      [7, 0.5],
    ]);
  });

  it("take a JSON schema or a grammar, not both", () => {
    const both = { jsonSchema: { type: "string" }, grammar: 'root ::= "a"' };

    expect(outcome(() => checkGenerateOptions(both))).toEqual(refused("grammar"));
    expect(checkGenerateOptions({ jsonSchema: both.jsonSchema }).sampling.jsonSchema).toBe(both.jsonSchema);
  });
});

describe("other arguments", () => {
  it.each([
    [
      "an id",
      checkModelId,
      ["a", "org/model:q4", "ü", "x".repeat(200)],
      ["", "@default", "a\nb", "x".repeat(201), 1, undefined],
    ],
    ["a source", checkSource, ["./m.gguf"], ["", 1, undefined, null]],
    ["text", (value: unknown) => checkText(value, "text"), ["", "hello", "🙂", "a\0b"], [1, undefined, "\uD83D"]],
    [
      "texts",
      (value: unknown) => checkTexts(value, "texts"),
      [[], ["a"]],
      ["a", [1], ["ok", "\uD83D"], Array.from({ length: 2 })],
    ],
    ["tokens", checkTokens, [[], [0, 5]], [[-1], [1.5], [Number.NaN], "5", [2 ** 31]]],
    [
      "messages",
      checkMessages,
      [
        [{ role: "user", content: "hi" }],
        [
          { role: "system", content: "" },
          { role: "assistant", content: "x" },
        ],
      ],
      [
        [],
        "hi",
        [{ role: "robot", content: "hi" }],
        [{ role: "user" }],
        [{ role: "user", content: "\uD83D" }],
        [{ role: "user", content: "x", name: "y" }],
      ],
    ],
    [
      "embed options",
      checkEmbedOptions,
      [{}, { normalize: false, dimensions: 64, truncate: true, timeoutMs: 5 }],
      [{ dimensions: 0 }, { dimensions: 1.5 }, { normalize: 1 }, { truncate: "end" }, { onOverflow: "stop" }],
    ],
    ["rank options", checkRankOptions, [{}, { truncate: true }], [{ dimensions: 4 }, { truncate: 1 }]],
    ["request options", checkRequestOptions, [{}, { timeoutMs: 5 }], [{ timeout: 5 }, null, { timeoutMs: "5" }]],
  ] as [string, (value: unknown) => unknown, unknown[], unknown[]][])(
    "take %s as it must be, and refuse it otherwise",
    (_, check, good, bad) => {
      for (const value of good) expect(() => check(value)).not.toThrow();
      for (const value of bad)
        expect(
          outcome(() => check(value)),
          JSON.stringify(value),
        ).toMatchObject({ code: "invalid_option" });
    },
  );

  it("of unload and close have these defaults", () => {
    expect(checkUnloadOptions({})).toEqual({ timeoutMs: 30_000, force: false });
    expect(checkUnloadOptions({ force: true })).toEqual({ timeoutMs: 0, force: true });
    expect(checkUnloadOptions({ force: true, timeoutMs: 7 })).toEqual({ timeoutMs: 7, force: true });
    expect(checkCloseOptions({})).toEqual({ timeoutMs: 10_000 });
    expect(outcome(() => checkUnloadOptions({ timeout: 1 }))).toMatchObject({
      option: "timeout",
      expected: expect.stringContaining('"timeoutMs"'),
    });
  });

  it.each([
    [{ models: [{ id: "a" }] }, "models.0.source"],
    [
      {
        models: [
          { id: "a", source: "x", default: true },
          { id: "b", source: "y", default: true },
        ],
      },
      "models",
    ],
    [{ clock: {} }, "clock"],
    [{ logger: { log: 1 } }, "logger"],
    [{ name: "" }, "name"],
    [{ modelsDir: "" }, "modelsDir"],
    [{ modelsDir: "./models", backend: new FakeBackend() }, "modelsDir"],
    [{ overBudget: "evict" }, "overBudget"],
    [null, "options"],
  ])("of the supervisor are refused: %j", (options, option) => {
    expect(outcome(() => checkSupervisorOptions(options))).toEqual(refused(option));
  });
});
