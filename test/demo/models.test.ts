import { mkdir, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { beforeAll, describe, expect, it } from "vitest";
import { paragraphsOf, piecesOf, readDocuments, sentencesOf } from "../../demo/models/corpus.js";
import { demoModels, type DemoModels } from "../../demo/models/index.js";
import { chat, complete, similarity, useTemporaryFolder, withModel } from "../support/bare-engine.js";

const documents = [
  `# Bread

Good bread needs flour, water, salt and time. The baker mixes the flour with warm water and leaves the dough to rest for an hour.
When the dough has doubled, the baker folds the dough and lets it rise again in a basket.

- The oven must be hot before the dough goes in.
- A stone in the oven keeps the heat and gives the bread a dark crust.
- Steam in the hot oven keeps the crust of the bread soft while the dough rises.

\`\`\`ts
const secretCode = bake("never in the corpus");
\`\`\`

The baker takes the bread out of the oven when the crust sounds hollow. The bread must cool before the baker cuts it.
Old dough from the day before gives the bread a better taste than yeast alone.
`,
  `# Sailing

A sailor reads the wind before the boat leaves the harbour. The wind turns with the tide, and a careful sailor sets the sails early.
When the wind grows stronger, the crew takes in the sails and the boat stays upright in the waves.

| sail | wind |
| --- | --- |
| tablecell | strong |

The captain keeps the boat away from the rocks near the coast. In a storm the crew ties every rope twice and the captain turns the boat into the waves.
The anchor holds the boat in the [harbour](https://example.org/secret-address) through the night. Before the morning the sailor looks at the sky, the wind and the waves.
A boat without a captain drifts with the tide. The crew lifts the anchor when the captain calls, and the wind fills the sails.
`,
  `# Gardens

The gardener plants the seeds in spring, when the soil is warm and the frost is over. Seeds need water every day until the first leaves appear.
A gardener turns the soil and adds compost, so that the roots of the plants find food. Weeds take the light from young plants; the gardener pulls the weeds after rain.

In summer the gardener waters the plants in the evening, when the soil is cool. The roots of the roses reach deep into the soil.
In autumn the leaves fall on the soil and become compost. The gardener cuts the roses before the frost comes, and the garden sleeps until spring.
`,
];

const inFolder = useTemporaryFolder();
let models: DemoModels;

beforeAll(async () => {
  models = await demoModels(inFolder("cache"), documents);
});

describe("paragraphsOf", () => {
  it("keeps prose and drops code, tables, headings, markup and addresses", () => {
    const text = documents.flatMap(paragraphsOf).join("\n");

    expect(text).toContain("The anchor holds the boat in the harbour through the night.");
    expect(text).toContain("\nThe oven must be hot before the dough goes in.\n");
    expect(text).not.toMatch(/secret|tablecell|Sailing|[#|`[\]]/);
  });
});

describe("piecesOf", () => {
  it("gives pieces that joined are the paragraph", () => {
    const paragraph = "It's a well-known rule: no v1.2 (of node.js) at 10%!";

    expect(piecesOf(paragraph).join("")).toBe(` ${paragraph}`);
    expect(piecesOf("so, well-known")).toEqual([" so", ",", " well-known"]);
  });
});

describe("sentencesOf", () => {
  it("gives each sentence as lower-case words", () => {
    expect(sentencesOf("The wind turns. Set the sails!")).toEqual([
      ["the", "wind", "turns"],
      ["set", "the", "sails"],
    ]);
  });
});

describe("readDocuments", () => {
  it("finds markdown files in folders, but not those of dependencies", async () => {
    await mkdir(inFolder("project/ADR"), { recursive: true });
    await mkdir(inFolder("project/node_modules/other"), { recursive: true });
    await writeFile(inFolder("project/README.md"), "readme");
    await writeFile(inFolder("project/ADR/0001.md"), "decision");
    await writeFile(inFolder("project/node_modules/other/README.md"), "other");

    expect(await readDocuments(inFolder("project"))).toEqual(["decision", "readme"]);
  });
});

describe("demoModels", () => {
  it("makes both files in the cache folder once", async () => {
    const before = await stat(models.chat);
    expect(await demoModels(inFolder("cache"), documents)).toEqual(models);

    expect((await stat(models.chat)).mtimeMs).toBe(before.mtimeMs);
    expect(await readdir(inFolder("cache"))).toHaveLength(2);
  });

  it("makes the same files when two do it at once", async () => {
    const [one, other] = await Promise.all([
      demoModels(inFolder("twice"), documents),
      demoModels(inFolder("twice"), documents),
    ]);

    expect(one).toEqual(other);
    expect(await readdir(inFolder("twice"))).toHaveLength(2);
    expect((await readFile(one.chat)).equals(await readFile(models.chat))).toBe(true);
    expect((await readFile(one.embed)).equals(await readFile(models.embed))).toBe(true);
  });

  it("makes others for another text", async () => {
    const others = await demoModels(inFolder("other"), documents.slice(0, 2));

    expect(others.chat.slice(-20)).not.toBe(models.chat.slice(-20));
  });

  it("refuses a text that is too short, saying how long it must be", async () => {
    await expect(demoModels(inFolder("short"), ["A few words only."])).rejects.toThrow("200 words");
  });
});

describe("the chat model", () => {
  const knownWords = new Set(documents.flatMap((text) => text.match(/\p{L}+/gu) ?? []));

  it("goes on with whole words of the text and right spaces", async () => {
    const text = await withModel(models.chat, (model) => complete(model, "The baker", 40));

    const words = text.match(/\p{L}+/gu) ?? [];
    expect(words.length).toBeGreaterThan(3);
    expect(words.filter((word) => !knownWords.has(word))).toEqual([]);
    expect(text).not.toMatch(/\s[,.;:]| {2}|[.,]\p{L}/u);
  });

  it("goes on by the last two words, not by the last one alone", async () => {
    const [water, soil] = await withModel(models.chat, async (model) => [
      await complete(model, "with warm", 1),
      await complete(model, "soil is warm", 1),
    ]);

    expect([water, soil].map((text) => text.trim())).toEqual(["water", "and"]);
  });

  it("answers in a chat and ends", async () => {
    const answers = await withModel(models.chat, (model) =>
      chat(model, ["Tell me about the boat", "And the garden?"], 300),
    );

    for (const answer of answers) expect(answer).toMatch(/^\p{Lu}.*\p{L}/u);
  });
});

describe("the embedding model", () => {
  it.each([
    ["The dough rises in a hot oven.", "Bread with a dark crust.", "The captain turns the boat."],
    ["The wind fills the sails.", "A storm with high waves near the coast.", "Seeds need warm soil."],
    ["Roses have deep roots.", "The gardener adds compost.", "The crust of the bread."],
  ])("puts %j closer to %j than to %j", async (sentence, near, far) => {
    const [toNear, toFar] = await withModel(models.embed, async (model) => [
      await similarity(model, sentence, near),
      await similarity(model, sentence, far),
    ]);

    expect(toNear).toBeGreaterThan(toFar + 0.1);
  });
});
