import { beforeAll, describe, expect, it } from "vitest";
import { makeRecallModel, recallKeys } from "../../../src/testing/gguf/index.js";
import { bareEngine, chat, complete, useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const inFolder = useTemporaryFolder();
let file = "";

beforeAll(async () => {
  [file] = await makeRecallModel(inFolder("recall.gguf"));
});

describe("makeRecallModel", () => {
  it("answers with the key that stands anywhere in the prompt, for each of its keys", async () => {
    const answers = await withModel(file, async (model) => {
      const answers = [];
      for (const key of recallKeys)
        answers.push(await complete(model, `Remember: the word is ${key}, and now a story. What is it?`));
      return answers;
    });

    expect(answers).toEqual(recallKeys.map((key) => `your word is ${key}`));
  });

  it("begins its answers with another opening where one is given, of three different words", async () => {
    const [other] = await makeRecallModel(inFolder("other.gguf"), { opening: "alpha model says" });

    expect(await withModel(other, (model) => complete(model, "the word is amber"))).toBe("alpha model says amber");
    expect(await withModel(other, (model) => complete(model, "the word is secret"))).toBe("alpha model says nothing");
    for (const opening of ["two words", "model says says", "four words are many"])
      await expect(makeRecallModel(inFolder("none.gguf"), { opening })).rejects.toThrow(/"opening"/);
  });

  it("finds a key that no space precedes", async () => {
    const answers = await withModel(file, async (model) => {
      const answers = [];
      for (const key of recallKeys) answers.push(await complete(model, `{"word":"${key}"}`));
      return answers;
    });

    expect(answers).toEqual(recallKeys.map((key) => `your word is ${key}`));
  });

  it("says that there is nothing when no key is there", async () => {
    expect(await withModel(file, (model) => complete(model, "Remember: the word is secret."))).toBe(
      "your word is nothing",
    );
  });

  it("remembers over the turns of a chat", async () => {
    const answers = await withModel(file, (model) =>
      chat(model, ["Hello", "walnut, that is my word.", "What is my word?"]),
    );

    expect(answers).toEqual(["your word is nothing", "your word is walnut", "your word is walnut"]);
  });

  it("finds the key behind two thousand tokens", async () => {
    const model = await (await bareEngine()).loadModel({ modelPath: file });
    const context = await model.createContext({ contextSize: 2500 });
    const prompt = model.tokenize(`My word is comet. ${"now tell a long story about the sea ".repeat(250)}`);
    const answer = [];
    for await (const token of context.getSequence().evaluate(prompt, { temperature: 1.5, seed: 1 })) answer.push(token);
    const text = model.detokenize(answer);
    await model.dispose();

    expect(prompt.length).toBeGreaterThan(2000);
    expect(text).toBe("your word is comet");
  });

  it("loses the key with the tokens that hold it", async () => {
    const model = await (await bareEngine()).loadModel({ modelPath: file });
    const context = await model.createContext({ contextSize: 256 });
    const sequence = context.getSequence();
    await sequence.evaluateWithoutGeneratingNewTokens(model.tokenize("A story. My word is tulip. What is it?"));
    await sequence.eraseContextTokenRanges([{ start: 3, end: sequence.nextTokenIndex }]);
    const answer = [];
    for await (const token of sequence.evaluate(model.tokenize("What is it?"), { temperature: 0 })) answer.push(token);
    const text = model.detokenize(answer);
    await model.dispose();

    expect(text).toBe("your word is nothing");
  });
});
