import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { ModelSupervisor } from "../../src/index.js";
import type { ModelManager, ModelSupervisorOptions } from "../../src/index.js";
import {
  corruptFile,
  makeEmbeddingModel,
  makeRandomModel,
  makeRecallModel,
  makeRecitingModel,
  recallKeys,
} from "../../src/testing/index.js";
import { useTemporaryFolder } from "../support/bare-engine.js";
import { rejection } from "../support/test-supervisor.js";

const run = promisify(execFile);
const file = useTemporaryFolder();
const TEXT = "the cat sat on the mat, and the dog sat on the cat.";
const greedy = { temperature: 0 } as const;

let started = 0;

/** The whole thing: real tree, real time, real engine. */
async function startModels(options: ModelSupervisorOptions = {}): Promise<ModelManager> {
  const models = await ModelSupervisor.start({ name: `real-${++started}`, maxThreads: 1, ...options });
  onTestFinished(() => models.close({ timeoutMs: 0 }));
  return models;
}

beforeAll(async () => {
  await makeRecitingModel(file("talker.gguf"), { text: TEXT });
  await makeRecallModel(file("recall.gguf"));
  await makeEmbeddingModel(file("embed.gguf"));
  await makeRandomModel(file("random.gguf"), { preset: "tiny" });
});

describe("several real models in one process", () => {
  it("generate, stream, chat and embed by id, side by side", async () => {
    const models = await startModels({
      models: [
        { id: "chat", source: file("talker.gguf"), default: true, contextSize: 128 },
        { id: "embed", source: file("embed.gguf") },
      ],
    });
    await models.ready();

    const [generated, chatted, embedded] = await Promise.all([
      models.generate("chat", "hello", greedy),
      models.chat("@default", [{ role: "user", content: "hello" }], greedy),
      models.embedMany("embed", ["the cat", "the cat", "water oil"]),
    ]);
    let streamed = "";
    for await (const piece of models.stream("chat", "hello", greedy)) streamed += piece;

    expect(generated.text).toBe(TEXT);
    expect(streamed).toBe(TEXT);
    expect(chatted.text).toBe(TEXT);
    expect(embedded.embeddings[0]).toEqual(embedded.embeddings[1]);
    expect(embedded.embeddings[0]).not.toEqual(embedded.embeddings[2]);
    expect(models.list().map(({ id, mode, measured }) => [id, mode, measured])).toEqual([
      ["chat", "server", true],
      ["embed", "direct", true],
    ]);
  });

  it("answer each of many conversations from its own context, with more requests than slots", async () => {
    const models = await startModels();
    await models.load("a", file("recall.gguf"), { contextSize: 128, parallel: 3 });
    await models.load("b", file("recall.gguf"), { contextSize: 128, parallel: 3 });
    const keys = recallKeys.slice(0, 12);

    const answers = await Promise.all(
      keys.map((key, index) =>
        models.generate(index % 2 === 0 ? "a" : "b", `remember the word ${key} please answer`, greedy),
      ),
    );

    expect(answers.map(({ text }) => text.trim())).toEqual(keys.map((key) => `your word is ${key}`));
    // the control: without a key in its context the model does not know one
    expect((await models.generate("a", "please answer", greedy)).text.trim()).toBe("your word is nothing");
  });

  it("of one file are two entries, and neither replaces the other", async () => {
    const models = await startModels();
    await models.load("one", file("talker.gguf"), { contextSize: 128 });
    await models.load("two", file("talker.gguf"), { contextSize: 128 });

    for (const id of ["one", "two", "one", "two"]) expect((await models.generate(id, "hi", greedy)).text).toBe(TEXT);

    expect(models.list().map(({ id, incarnation }) => [id, incarnation])).toEqual([
      ["one", 1],
      ["two", 2],
    ]);
  });

  it("a burst of first loads of one id makes one copy", async () => {
    const models = await startModels();

    const results = await Promise.allSettled(
      Array.from({ length: 8 }, () => models.load("a", file("talker.gguf"), { contextSize: 128 })),
    );

    expect(results.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    for (const result of results) {
      if (result.status === "rejected")
        expect(result.reason).toMatchObject({ code: "already_loaded", status: "loading" });
    }
    const { placement } = await models.plan(file("talker.gguf"), { contextSize: 128 });
    expect(models.memory().devices[0]?.reservedBytes).toBe(placement.ram);
  });

  it("a load and an unload of another model never cut off a running answer", async () => {
    const models = await startModels();
    await models.load("a", file("random.gguf"), { contextSize: 256, parallel: 1 });
    const running = models.generate("a", "the cat", { ...greedy, maxTokens: 200 });

    await models.load("b", file("talker.gguf"), { contextSize: 128 });
    expect((await models.generate("b", "hi", greedy)).text).toBe(TEXT);
    await models.unload("b");

    expect(await running).toMatchObject({ finishReason: "length", usage: { completionTokens: 200 } });
  });
});

describe("unloading under load", () => {
  it("waits for a generation and an embedding that run, then gives the memory back", async () => {
    const models = await startModels();
    await models.load("a", file("random.gguf"), { contextSize: 512, parallel: 1 });
    await models.load("e", file("embed.gguf"));
    const generation = models.generate("a", "the cat", { ...greedy, maxTokens: 100 });
    const embeddings = models.embedMany(
      "e",
      Array.from({ length: 20 }, (_, index) => `text number ${index}`),
    );

    await Promise.all([models.unload("a"), models.unload("e")]);

    expect((await generation).usage.completionTokens).toBe(100);
    expect((await embeddings).embeddings).toHaveLength(20);
    expect(models.memory().devices[0]).toMatchObject({ reservedBytes: 0 });
  });

  it("by force aborts what runs, and the process lives", async () => {
    const models = await startModels();
    await models.load("a", file("random.gguf"), { contextSize: 2048, parallel: 2 });
    await models.load("e", file("embed.gguf"));
    const requests = [
      models.generate("a", "the cat", { ...greedy, maxTokens: 2000 }),
      models.generate("a", "the cat ".repeat(400), { ...greedy, maxTokens: 100 }),
      models.embedMany(
        "e",
        Array.from({ length: 500 }, (_, index) => `text number ${index}`),
      ),
    ].map((promise) => rejection(promise));
    const reading = rejection(models.stream("a", "the dog", greedy).result);

    await Promise.all([models.unload("a", { force: true }), models.unload("e", { force: true })]);

    for (const error of await Promise.all([...requests, reading]))
      expect(error).toMatchObject({ code: "request_aborted" });
    expect(models.list()).toEqual([]);
    await models.load("a", file("talker.gguf"), { contextSize: 128 });
    expect((await models.generate("a", "hi", greedy)).text).toBe(TEXT);
  });

  it("survives a model that is disposed behind its back: it turns to error, and the other answers", async () => {
    const models = await startModels();
    await models.load("a", file("random.gguf"), { contextSize: 512 });
    await models.load("b", file("talker.gguf"), { contextSize: 128 });
    const running = rejection(models.generate("a", "the cat", { ...greedy, maxTokens: 500 }));
    const down = new Promise((resolve) => models.once("model:error", resolve));
    {
      using lease = await models.acquire("a");
      await (lease.native as { dispose(): Promise<void> }).dispose();
    }

    expect(await running).toMatchObject({ code: "backing_crashed", modelId: "a" });
    await down;
    expect(models.info("a")).toMatchObject({ status: "error", error: { code: "backing_crashed" } });
    expect((await models.generate("b", "hi", greedy)).text).toBe(TEXT);
    expect(await models.load("a")).toMatchObject({ status: "ready" });
    expect((await models.generate("a", "the cat", { ...greedy, maxTokens: 3 })).usage.completionTokens).toBe(3);
  });
});

describe("a file that is no good", () => {
  it("is refused by name and leaves nothing behind; the next load works", async () => {
    const models = await startModels();
    const bad: [string, string][] = [
      [file("missing.gguf"), "source_unavailable"],
      [file("folder.gguf"), "source_unavailable"],
      [file("page.gguf"), "invalid_model_file"],
      [file("empty.gguf"), "invalid_model_file"],
      [file("cut-header.gguf"), "invalid_model_file"],
      [file("cut-data.gguf"), "invalid_model_file"],
      [file("wrong-magic.gguf"), "invalid_model_file"],
      [file("wrong-version.gguf"), "invalid_model_file"],
    ];
    await mkdir(file("folder.gguf"));
    await writeFile(file("page.gguf"), "<!doctype html><title>404</title>");
    for (const kind of ["empty", "cut-header", "cut-data", "wrong-magic", "wrong-version"] as const) {
      await corruptFile(kind, file("talker.gguf"), file(`${kind}.gguf`));
    }

    for (const [source, code] of bad) {
      const error = await rejection(models.load("bad", source));
      expect(error, source).toMatchObject({ code });
      expect(String(error)).toContain(path.basename(source));
    }

    expect(models.list()).toEqual([]);
    expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect(await models.load("good", file("talker.gguf"), { contextSize: 128 })).toMatchObject({ status: "ready" });
  });

  it("or that lacks the asked capability is refused at load", async () => {
    const models = await startModels();

    expect(await rejection(models.load("e", file("embed.gguf"), { capabilities: ["chat"] }))).toMatchObject({
      code: "unsupported_capability",
    });
    expect(await rejection(models.load("e", file("embed.gguf"), { capabilities: ["rank"] }))).toMatchObject({
      code: "unsupported_capability",
    });
    expect(
      await models.load("both", file("talker.gguf"), { capabilities: ["generate", "embed"], contextSize: 128 }),
    ).toMatchObject({ mode: "direct" });
    expect((await models.embed("both", "hello")).embedding.length).toBeGreaterThan(0);
    expect((await models.generate("both", "hello", greedy)).text).toBe(TEXT);
  });

  it("and a load that does not fit is refused with the device and both numbers, as plan() said", async () => {
    const models = await startModels({ memoryBudget: { ram: "2MiB" } });
    const options = { contextSize: 2048, parallel: 8 };

    const plan = await models.plan(file("talker.gguf"), options);
    const error = await rejection(models.load("big", file("talker.gguf"), options));

    expect(plan).toMatchObject({ outcome: "refuse", device: "ram", availableBytes: 2 * 1024 ** 2 });
    expect(error).toMatchObject({
      code: "insufficient_memory",
      device: "ram",
      requiredBytes: plan.requiredBytes,
      availableBytes: 2 * 1024 ** 2,
    });
    expect(models.list()).toEqual([]);
  });
});

describe("a script", () => {
  it.each([
    ["closes", "await models.close();"],
    [
      "closes while it generates",
      'void models.generate("m", "hi", { maxTokens: 400 }).catch(() => undefined); await models.close({ timeoutMs: 0 });',
    ],
    ["throws after await using", "throw new Error('as expected');"],
  ])("that starts, loads, generates and %s exits by itself", async (_, end) => {
    const script = file("script.mts");
    const index = JSON.stringify(path.join(import.meta.dirname, "../../src/index.ts"));
    await writeFile(
      script,
      `import { ModelSupervisor } from ${index};
       process.exitCode = 0;
       try {
         await using models = await ModelSupervisor.start({ maxThreads: 1 });
         await models.load("m", ${JSON.stringify(file("random.gguf"))}, { contextSize: 512 });
         await models.generate("m", "hi", { maxTokens: 4 });
         ${end}
       } catch (error) {
         if (error.message !== "as expected") throw error;
       }
       console.log("end");`,
    );

    const { stdout, stderr } = await run(process.execPath, ["--import", "tsx", script], {
      cwd: path.join(import.meta.dirname, "../.."),
      timeout: 15_000,
    });

    expect(stdout).toBe("end\n");
    expect(stderr).toBe("");
  });
});

const foreign = path.join(process.env["TEST_MODEL_DIR"] ?? "", "aidreams260K.gguf");
const hasForeign = process.env["TEST_MODEL_DIR"] !== undefined && existsSync(foreign);

describe("a model that others trained", () => {
  it.skipIf(!hasForeign)(
    `continues as its reference implementation does${hasForeign ? "" : " (skipped: TEST_MODEL_DIR names no folder with aidreams260K.gguf)"}`,
    async () => {
      const models = await startModels();
      const info = await models.load("dream", foreign);

      const { text, usage } = await models.generate("dream", '"Echoes', { ...greedy, maxTokens: 40 });

      expect(info.contextSize).toBe(128);
      expect(text.startsWith(" of vectors unfold, a gentle hum of precision")).toBe(true);
      expect(usage.completionTokens).toBe(40);
    },
  );
});
