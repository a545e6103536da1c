import { describe, expect, it } from "vitest";
import { makeRecitingModel } from "../../../src/testing/gguf/index.js";
import { chat, complete, useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const inFolder = useTemporaryFolder();

const texts = {
  sentence: "The cat sat on the mat.",
  repetition: "no no no no, yes yes: the the the the the end end end",
  json: '{"name": "getWeather", "arguments": {"city": "Paris", "days": [1, 1, 1]}, "nested": {"a": {"a": {}}}}',
  call: '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>',
  lines: "first line\n\n\tsecond  line\n- a\n- b",
  scripts: "naïve café 日本語 日本語 🙂🙂 Привет",
  spaces: "  two spaces before",
};

describe("makeRecitingModel", () => {
  it.each(Object.entries(texts))("recites %s exactly, as completion and in a chat", async (name, text) => {
    const [file] = await makeRecitingModel(inFolder(`${name}.gguf`), { text });

    const [completion, answers] = await withModel(file, async (model) => [
      await complete(model, ""),
      await chat(model, ["What do you say?"]),
    ]);
    expect(completion).toBe(text);
    expect(answers).toEqual([text]);
  });

  it("recites again in every turn of a chat", async () => {
    const [file] = await makeRecitingModel(inFolder("turns.gguf"), { text: texts.sentence });

    const answers = await withModel(file, (model) => chat(model, ["What do you say?", "And now?"]));
    expect(answers).toEqual([texts.sentence, texts.sentence]);
  });

  it("begins at the beginning after any prompt, even its own text", async () => {
    const [file] = await makeRecitingModel(inFolder("prompts.gguf"), { text: texts.sentence });

    const completions = await withModel(file, (model) =>
      Promise.all(["Hello", "The cat sat", "on the", "日本", "line\n"].map((prompt) => complete(model, prompt))),
    );
    expect(new Set(completions)).toEqual(new Set([texts.sentence]));
  });

  it("says a word that stands first as one token", async () => {
    const [file] = await makeRecitingModel(inFolder("tokens.gguf"), { text: texts.sentence });

    const beginnings = await withModel(file, (model) =>
      Promise.all([1, 2, 3].map((count) => complete(model, "", count))),
    );
    expect(beginnings).toEqual(["The", "The cat", "The cat sat"]);
  });

  it("recites a long text", async () => {
    const text = Array.from({ length: 40 }, (_, i) => `item ${i} of ${i % 7}`).join(", ");
    const [file] = await makeRecitingModel(inFolder("long.gguf"), { text });

    expect(await withModel(file, (model) => complete(model, "", 500))).toBe(text);
  });

  it("leaves prompts as they are", async () => {
    const [file] = await makeRecitingModel(inFolder("tokenizer.gguf"), { text: texts.sentence });

    const prompt = 'The cat sat on "the mat".\n日本';
    expect(await withModel(file, async (model) => model.detokenize(model.tokenize(prompt)))).toBe(prompt);
  });

  it("refuses an empty text", async () => {
    await expect(makeRecitingModel(inFolder("bad.gguf"), { text: "" })).rejects.toThrow(TypeError);
    await expect(makeRecitingModel(inFolder("bad.gguf"), { text: "" })).rejects.toThrow('Option "text"');
  });
});
