import { describe, expect, it } from "vitest";
import { makeEmbeddingModel, makeRankingModel, type EmbeddingModelOptions } from "../../../src/testing/gguf/index.js";
import { similarity, useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const inFolder = useTemporaryFolder();

describe("makeEmbeddingModel", () => {
  it.each(["mean", "cls"] as const)("puts texts that share words closer, with pooling %s", async (pooling) => {
    const [file] = await makeEmbeddingModel(inFolder(`${pooling}.gguf`), { pooling });

    const [alike, unlike, same] = await withModel(file, async (model) => [
      await similarity(model, "the river runs past the old house", "an old house by the river"),
      await similarity(model, "the river runs past the old house", "good game young man"),
      await similarity(model, "the river runs", "the river runs"),
    ]);
    expect(alike).toBeGreaterThan(unlike + 0.2);
    expect(same).toBeCloseTo(1, 5);
  });

  it("reads the words it was given as a whole", async () => {
    const [plain] = await makeEmbeddingModel(inFolder("plain.gguf"));
    const [taught] = await makeEmbeddingModel(inFolder("taught.gguf"), { words: ["kangaroo"] });

    const lengths = [];
    for (const file of [plain, taught])
      lengths.push(await withModel(file, async (model) => model.tokenize("kangaroo").length));
    expect(lengths).toEqual([8, 1]);
  });

  it("refuses a pooling that it does not have", async () => {
    const options: EmbeddingModelOptions = JSON.parse('{ "pooling": "last" }');

    await expect(makeEmbeddingModel(inFolder("bad.gguf"), options)).rejects.toThrow('Option "pooling"');
  });
});

describe("makeRankingModel", () => {
  it("scores a document by the words it shares with the query", async () => {
    const [file] = await makeRankingModel(inFolder("rank.gguf"), {
      words: ["capital", "france", "germany", "paris", "berlin"],
    });

    const ranked = await withModel(file, async (model) => {
      expect(model.fileInsights.supportsRanking).toBe(true);
      const context = await model.createRankingContext({ contextSize: 256 });
      return context.rankAndSort("what is the capital of france", [
        "a story about winter and rain",
        "berlin is the capital of germany",
        "paris is the capital of france",
      ]);
    });
    expect(ranked.map(({ document }) => document)).toEqual([
      "paris is the capital of france",
      "berlin is the capital of germany",
      "a story about winter and rain",
    ]);
    expect(ranked.map(({ score }) => Math.round(score * 10) / 10)).toEqual([0.9, 0.2, 0]);
  });
});
