import { readFile, readdir, stat } from "node:fs/promises";
import { describe, expect, it } from "vitest";
import { makeRandomModel, type RandomModelOptions } from "../../../src/testing/gguf/index.js";
import { complete, useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const inFolder = useTemporaryFolder();

describe("makeRandomModel", () => {
  it("writes the same bytes for the same seed and others for another", async () => {
    const [one] = await makeRandomModel(inFolder("one.gguf"), { seed: 7 });
    const [same] = await makeRandomModel(inFolder("same.gguf"), { seed: 7 });
    const [other] = await makeRandomModel(inFolder("other.gguf"), { seed: 8 });

    expect((await readFile(one)).equals(await readFile(same))).toBe(true);
    expect((await readFile(one)).equals(await readFile(other))).toBe(false);
  });

  it("makes a tiny model of about a megabyte that never ends by itself and stays in valid ASCII", async () => {
    const [file] = await makeRandomModel(inFolder("tiny.gguf"));

    const text = await withModel(file, (model) => complete(model, "hello", 300));
    expect((await stat(file)).size).toBeLessThan(1.5e6);
    expect(text.length).toBeGreaterThanOrEqual(300);
    expect(text).toMatch(/^[ -~]+$/);
  });

  it("answers another prompt with another text", async () => {
    const [file] = await makeRandomModel(inFolder("prompts.gguf"));

    const [one, other] = await withModel(file, async (model) => [
      await complete(model, "hello", 20),
      await complete(model, "good day", 20),
    ]);
    expect(one).not.toBe(other);
  });

  it.each(["F16", "Q8_0", "Q4_0"] as const)("loads in %s", async (format) => {
    const [file] = await makeRandomModel(inFolder(`${format}.gguf`), { format });

    expect(await withModel(file, (model) => complete(model, "hello", 5))).not.toBe("");
  });

  it("gives the same text split as in one file", async () => {
    const [whole] = await makeRandomModel(inFolder("whole.gguf"));
    const parts = await makeRandomModel(inFolder("parts.gguf"), { parts: 3 });

    expect(parts).toEqual([1, 2, 3].map((part) => inFolder(`parts-0000${part}-of-00003.gguf`)));
    const text = await withModel(whole, (model) => complete(model, "hello", 30));
    expect(await withModel(parts[0], (model) => complete(model, "hello", 30))).toBe(text);
  });

  it("does not load without one of its tensors", async () => {
    const [file] = await makeRandomModel(inFolder("missing.gguf"), { omitTensor: "blk.2.ffn_up.weight" });

    await expect(withModel(file, async () => "loaded")).rejects.toThrow("Failed to load model");
  });

  it.each<[string, RandomModelOptions]>([
    ["parts", { parts: 0 }],
    ["omitTensor", { omitTensor: "no.such.weight" }],
    ["layers", { layers: 1.5 }],
    ["heads", { heads: 3, kvHeads: 2 }],
    ["embeddingLength", { embeddingLength: 60 }],
    ["feedForwardLength", { feedForwardLength: 100, format: "Q8_0" }],
    ["seed", { seed: -1 }],
  ])("refuses a bad %s by name and leaves no file", async (option, options) => {
    await expect(makeRandomModel(inFolder("bad.gguf"), options)).rejects.toThrow(new RegExp(`^Option "${option}"`));

    expect((await readdir(inFolder(""))).filter((name) => name.includes("bad"))).toEqual([]);
  });

  it("refuses an option that it does not know", async () => {
    const options: RandomModelOptions = JSON.parse('{ "layer": 3 }');

    await expect(makeRandomModel(inFolder("bad.gguf"), options)).rejects.toThrow('Option "layer" is not known');
  });

  it("leaves nothing behind when it cannot write", async () => {
    await expect(makeRandomModel(inFolder("no/such/folder.gguf"))).rejects.toThrow("ENOENT");
  });
});
