import { beforeAll, describe, expect, it } from "vitest";
import type { Backing, Sampling } from "../../../src/backends/backend.js";
import type { GenerationPart, LikelyToken } from "../../../src/inference.js";
import { makeRecitingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { makeDiceModel, type DiceModel } from "../../support/dice-model.js";
import { GREEDY, method, never, request, start } from "./engine-fixture.js";

const at = useTemporaryFolder();
const FACES = { one: 0.5, two: 0.3, three: 0.2 };
const TEXT = "Größe 😀 there";
/** The model's own distribution: nothing is left out, nothing is weighted. */
const AS_IT_IS = { ...GREEDY, temperature: 1, topK: 0, topP: 1, minP: 0 };
let dice: DiceModel;
let reciting = "";

beforeAll(async () => {
  dice = await makeDiceModel(at("dice.gguf"), FACES);
  [reciting] = await makeRecitingModel(at("reciting.gguf"), { text: TEXT });
});

const generate = (backing: Backing, sampling: Partial<Sampling>) =>
  method(backing, "generate")("Say it", { ...AS_IT_IS, maxTokens: 100, ...sampling }, request());

/** The words that the dice show. */
async function say(backing: Backing, sampling: Partial<Sampling>): Promise<string[]> {
  return (await generate(backing, sampling)).text.trim().split(" ");
}

const share = (words: readonly string[], word: string) => words.filter((each) => each === word).length / words.length;
const face = (word: keyof typeof FACES) => dice.tokens[word] ?? Number.NaN;
const probabilities = (likely: readonly LikelyToken[] = []) =>
  Object.fromEntries(likely.map(({ text, logprob }) => [text.trim(), Math.exp(logprob)]));
const about = (expected: Readonly<Record<string, number>>) =>
  Object.fromEntries(Object.entries(expected).map(([word, value]) => [word, expect.closeTo(value, 3)]));

describe("a sampling option", () => {
  it("that leaves everything as it is lets every token come as often as the model says", async () => {
    const words = await say(await start(dice.file, { contextSize: 512 }), { seed: 1, maxTokens: 400 });

    expect(words).toHaveLength(400);
    for (const [word, probability] of Object.entries(FACES))
      expect(Math.abs(share(words, word) - probability)).toBeLessThan(0.06);
  });

  it.each<[Partial<Sampling>, string[]]>([
    [{}, ["one", "three", "two"]],
    [{ topK: 3 }, ["one", "three", "two"]],
    [{ topK: 2 }, ["one", "two"]],
    [{ topK: 1 }, ["one"]],
    [{ topP: 0.81 }, ["one", "three", "two"]],
    [{ topP: 0.7 }, ["one", "two"]],
    [{ topP: 0.4 }, ["one"]],
    [{ topP: 0 }, ["one"]],
    [{ minP: 0.3 }, ["one", "three", "two"]],
    [{ minP: 0.5 }, ["one", "two"]],
    [{ minP: 1 }, ["one"]],
    [{ temperature: 0 }, ["one"]],
    [{ temperature: 1e-40 }, ["one"]],
    [{ temperature: 20, topK: 1 }, ["one"]],
  ])("%j leaves %j to choose from", async (sampling, words) => {
    const backing = await start(dice.file);

    expect([...new Set(await say(backing, { seed: 5, ...sampling }))].toSorted()).toEqual(words);
  });

  it("temperature sharpens below 1 and flattens above it", async () => {
    const backing = await start(dice.file);
    const shareOfOne = async (temperature: number) =>
      share(await say(backing, { temperature, topK: 3, seed: 9 }), "one");

    expect(await shareOfOne(0.3)).toBeGreaterThan(0.75);
    expect(await shareOfOne(1)).toBeLessThan(0.6);
    expect(await shareOfOne(50)).toBeLessThan(0.42);
  });

  it("seed repeats a text, also beside other requests, and another seed or none gives another text", async () => {
    const backing = await start(dice.file, { parallel: 3 });
    const alone = await say(backing, { seed: 7 });

    const [beside, other, none, noneAgain] = await Promise.all([
      say(backing, { seed: 7 }),
      say(backing, { seed: 2 ** 32 - 1 }),
      say(backing, {}),
      say(backing, {}),
    ]);

    expect(beside).toEqual(alone);
    expect(new Set([alone, other, none, noneAgain].map(String)).size).toBe(4);
  });

  it("repeatPenalty takes a token back for as long as it is among the last 64, and 1 does nothing", async () => {
    const backing = await start(dice.file);
    const ones = (count: number) => Array<string>(count).fill("one");

    expect(await say(backing, { temperature: 0, maxTokens: 70 })).toEqual(ones(70));
    // all three are punished from the fourth token on, until the first "two" is 65 tokens ago
    const first = ["one", "two", "three", ...ones(63)];
    expect(await say(backing, { temperature: 0, maxTokens: 68, repeatPenalty: 2 })).toEqual([...first, "two", "three"]);
  });

  it.each([
    ["temperature", Number.NaN],
    ["topK", -1],
    ["topP", Infinity],
    ["minP", -0.1],
    ["seed", 2 ** 32],
    ["repeatPenalty", 0],
    ["maxTokens", 0],
    ["logitBias", [[260, Number.NaN]]],
    ["logitBias", [[260, 101]]],
    ["logitBias", [[-1, 1]]],
    ["logitBias", [[0.5, 1]]],
    ["logitBias", [[1e6, 1]]],
  ])("lets no bad %s through to native code", async (option, value) => {
    const backing = await start(dice.file);

    await expect(generate(backing, { maxTokens: 1, [option]: value })).rejects.toMatchObject({
      code: "invalid_option",
      option,
    });
    await expect(generate(backing, { maxTokens: 1 })).resolves.toBeDefined();
  });
});

describe("logitBias", () => {
  it("bans a token with -100, makes others likelier or less likely, and concerns its own request only", async () => {
    const backing = await start(dice.file, { parallel: 2 });

    const [banned, free] = await Promise.all([
      say(backing, { seed: 3, logitBias: [[face("one"), -100]] }),
      say(backing, { seed: 3 }),
    ]);
    const favoured = await say(backing, { temperature: 0, maxTokens: 3, logitBias: [[face("three"), 1]] });
    const held = await say(backing, { temperature: 0, maxTokens: 3, logitBias: [[face("one"), -0.6]] });

    expect([...new Set(banned)].toSorted()).toEqual(["three", "two"]);
    expect([...new Set(free)].toSorted()).toEqual(["one", "three", "two"]);
    expect(favoured).toEqual(["three", "three", "three"]);
    expect(held).toEqual(["two", "two", "two"]);
  });

  it("makes certain with 100 what would never come", async () => {
    const backing = await start(dice.file);
    const [word = Number.NaN] = await method(backing, "tokenize")(" good");

    expect(await say(backing, { seed: 1, maxTokens: 3, logitBias: [[word, 100]] })).toEqual(["good", "good", "good"]);
  });

  it("adds to the logit: e times as likely for each 1", async () => {
    const backing = await start(dice.file);
    const logitBias = [[face("three"), Math.log(5)] as const];

    const { logprobs } = await generate(backing, { maxTokens: 1, topLogprobs: 3, logitBias });

    expect(probabilities(logprobs?.[0]?.top)).toEqual(about({ three: 1 / 1.8, one: 0.5 / 1.8, two: 0.3 / 1.8 }));
  });

  it("refuses tokens that end a text, and ids just outside the vocabulary", async () => {
    const backing = await start(dice.file);
    const biased = (token: number) => generate(backing, { maxTokens: 1, logitBias: [[token, 1]] });

    await expect(biased(dice.endToken)).rejects.toMatchObject({ code: "invalid_option", option: "logitBias" });
    await expect(biased(dice.vocabularySize)).rejects.toMatchObject({ code: "invalid_option", option: "logitBias" });
    await expect(biased(dice.vocabularySize - 1)).resolves.toBeDefined();
  });

  it.each([0, 0.8])(
    "that bans all that a grammar allows fails that request alone, at temperature %d",
    async (temperature) => {
      const backing = await start(dice.file);
      const ids = Array.from({ length: dice.vocabularySize }, (_, id) => id);
      const texts = await Promise.all(ids.map((id) => method(backing, "detokenize")([id])));
      const logitBias = ids.filter((id) => texts[id]?.includes("z")).map((id) => [id, -100] as const);
      const call = { temperature, grammar: 'root ::= "z"' };

      await expect(generate(backing, { ...call, logitBias })).rejects.toMatchObject({ option: "grammar" });
      await expect(generate(backing, call)).resolves.toMatchObject({ text: "z" });
    },
  );
});

describe("logprobs", () => {
  it.each<[Partial<Sampling>, Readonly<Record<string, number>>]>([
    [{}, FACES],
    [{ temperature: 0, topK: 1 }, FACES],
    [{ topK: 2 }, { one: 5 / 8, two: 3 / 8 }],
    [{ temperature: 0.5 }, { one: 25 / 38, two: 9 / 38, three: 4 / 38 }],
    [{ topP: 0.1 }, { one: 1 }],
    [{ grammar: 'root ::= (" two" | " three")+' }, { two: 3 / 5, three: 2 / 5 }],
  ])("with %j tell of %j", async (sampling, expected) => {
    const backing = await start(dice.file);

    const { logprobs, usage } = await generate(backing, { maxTokens: 20, seed: 4, topLogprobs: 3, ...sampling });

    expect(usage.completionTokens).toBe(20);
    expect(logprobs).toHaveLength(20);
    for (const { text, token, logprob, top = [] } of logprobs ?? []) {
      const { [text.trim()]: likelihood, ...others } = probabilities(top.filter((each) => each.logprob > -20));
      expect({ ...others, [text.trim()]: likelihood }).toEqual(about(expected));
      expect(Math.exp(logprob)).toBeCloseTo(likelihood ?? 0, 6);
      expect(dice.tokens[text.trim()]).toBe(token);
      expect(top.map((each) => each.logprob)).toEqual(top.map((each) => each.logprob).toSorted((a, b) => b - a));
    }
  });

  it("are told only if they are asked for, and change nothing of a seeded text", async () => {
    const backing = await start(dice.file);

    const plain = await generate(backing, { seed: 11 });
    const told = await generate(backing, { seed: 11, topLogprobs: 0 });
    const toldMore = await generate(backing, { seed: 11, topLogprobs: 2 });

    expect(plain).not.toHaveProperty("logprobs");
    expect([told.text, toldMore.text]).toEqual([plain.text, plain.text]);
    expect(told.logprobs?.[0]).not.toHaveProperty("top");
    expect(toldMore.logprobs?.[0]?.top).toHaveLength(2);
    expect(toldMore.logprobs?.map(({ logprob }) => logprob)).toEqual(told.logprobs?.map(({ logprob }) => logprob));
  });

  it("leave out of the alternatives what has been banned", async () => {
    const backing = await start(dice.file);
    const ids = Array.from({ length: dice.vocabularySize }, (_, id) => id);
    const [one, two, three, end, endOfTurn] = [face("one"), face("two"), face("three"), dice.endToken, 260];
    const logitBias = ids.filter((id) => ![two, three, end, endOfTurn].includes(id)).map((id) => [id, -100] as const);

    const { logprobs } = await generate(backing, { maxTokens: 1, topLogprobs: 20, logitBias });

    const alternatives = logprobs?.[0]?.top?.map(({ token }) => token) ?? [];
    expect(alternatives).not.toContain(one);
    expect(alternatives.slice(0, 2)).toEqual([two, three]);
    expect(new Set(alternatives.slice(2))).toEqual(new Set([end, endOfTurn]));
  });

  it("come with the parts of a stream, one for each token, whose ids spell the text", async () => {
    const backing = await start(reciting);
    const parts: GenerationPart[] = [];
    const onPart = (part: GenerationPart) => void parts.push(part);
    const call = { id: "r", signal: never, phase: "load" as const, onPart };

    const result = await method(backing, "generate")("Say it", { ...GREEDY, topLogprobs: 0, stop: ["ere"] }, call);

    const inParts = parts.flatMap((part) => (part.type === "text" ? (part.logprobs ?? []) : []));
    const ids = result.logprobs?.map(({ token }) => token) ?? [];
    expect(result).toMatchObject({ text: TEXT.slice(0, -3), finishReason: "stop-sequence" });
    expect(ids).toHaveLength(result.usage.completionTokens);
    expect(await method(backing, "detokenize")(ids)).toBe(TEXT);
    expect(inParts).toEqual(result.logprobs);
    expect(result.logprobs?.filter(({ text }) => text === "\uFFFD").length).toBeGreaterThan(0);
    expect(result.logprobs?.every(({ logprob }) => logprob <= 0 && logprob > -0.1)).toBe(true);
  });

  it("are told in direct mode too", async () => {
    const backing = await start(dice.file, { mode: "direct", capabilities: ["generate"] });

    const { logprobs } = await generate(backing, { maxTokens: 2, topLogprobs: 1 });

    expect(logprobs?.map(({ top }) => probabilities(top))).toEqual([about({ one: 0.5 }), about({ one: 0.5 })]);
  });
});
