import { copyFile, mkdir, rm, stat, utimes, writeFile } from "node:fs/promises";
import { beforeAll, describe, expect, it } from "vitest";
import {
  corruptFile,
  makeEmbeddingModel,
  makeRandomModel,
  makeRankingModel,
  makeRecitingModel,
  type Corruption,
} from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { backend, never, resolve } from "./engine-fixture.js";

const at = useTemporaryFolder();
let good = "";

beforeAll(async () => {
  [good] = await makeRecitingModel(at("good.gguf"), { text: "Hello world.", contextLength: 1024 });
});

/** A header with these counts and these bytes behind them. */
async function header(name: string, tensors: bigint, values: bigint, rest: Buffer = Buffer.alloc(64)): Promise<string> {
  const start = Buffer.alloc(24);
  start.write("GGUF");
  start.writeUInt32LE(3, 4);
  start.writeBigUInt64LE(tensors, 8);
  start.writeBigUInt64LE(values, 16);
  await writeFile(at(name), Buffer.concat([start, rest]));
  return at(name);
}

describe("resolve", () => {
  it("tells what a good file is", async () => {
    const model = await resolve(good);

    expect(model).toMatchObject({
      source: good,
      supports: ["generate", "chat", "embed"],
      defaultCapabilities: ["generate", "chat"],
      trainedContextSize: 1024,
    });
    expect(model.sizeBytes).toBeGreaterThan(100_000);
  });

  it("reads a file once while what it found is remembered, and again when the file has changed in any way", async () => {
    const [file] = await makeRecitingModel(at("again.gguf"), { text: "Hello world." });
    const [other] = await makeRecitingModel(at("other.gguf"), { text: "Hello earth." });
    const { atime, mtime, size } = await stat(file);
    const first = await resolve(file);

    expect(await resolve(file)).toBe(first);
    await copyFile(other, file);
    await utimes(file, atime, mtime);
    expect((await stat(file)).size).toBe(size);

    const second = await resolve(file);
    expect(second).not.toBe(first);
    expect(await resolve(file)).toBe(second);
    await rm(file);
    await expect(resolve(file)).rejects.toMatchObject({ code: "source_unavailable" });
  });

  it("tells an encoder and a reranker from a generative model", async () => {
    const [encoder] = await makeEmbeddingModel(at("encoder.gguf"));
    const [ranker] = await makeRankingModel(at("ranker.gguf"));

    expect(await resolve(encoder)).toMatchObject({
      supports: ["embed"],
      defaultCapabilities: ["embed"],
      trainedContextSize: 512,
    });
    expect(await resolve(ranker)).toMatchObject({ supports: ["rank"], defaultCapabilities: ["rank"] });
  });

  it("refuses a path that leads to nothing", async () => {
    await expect(resolve(at("nothing.gguf"))).rejects.toMatchObject({
      code: "source_unavailable",
      source: at("nothing.gguf"),
      detail: "the file does not exist",
    });
    await expect(resolve(`${good}/inside.gguf`)).rejects.toMatchObject({ code: "source_unavailable" });
  });

  it.each([
    ["nothing.gguf", /^the file does not exist; it was looked for at "[^"]+nothing.gguf"$/],
    ["someone/some-model", /some-model", and a model of the hub is written hf:user\/repo:quant$/],
    ["some-model:1b", /some-model:1b", and a model of the hub is written hf:user\/repo:quant$/],
  ])("says where it looked for %s, and how the hub is meant", async (source, detail) => {
    await expect(resolve(source)).rejects.toMatchObject({ detail: expect.stringMatching(detail) });
  });

  it("refuses a directory", async () => {
    await mkdir(at("folder.gguf"), { recursive: true });

    await expect(resolve(at("folder.gguf"))).rejects.toMatchObject({
      code: "source_unavailable",
      detail: expect.stringContaining("directory"),
    });
  });

  it.each<[Corruption, string]>([
    ["empty", "empty"],
    ["wrong-magic", 'does not start with "GGUF"'],
    ["wrong-version", "version 99"],
    ["cut-header", "ends inside the header"],
    ["cut-data", "cut off"],
  ])("refuses a file that is damaged: %s", async (kind, detail) => {
    const file = await corruptFile(kind, good, at(`${kind}.gguf`));

    await expect(resolve(file)).rejects.toMatchObject({
      code: "invalid_model_file",
      file,
      detail: expect.stringContaining(detail),
    });
  });

  it("refuses a web page saved as a model, and says so", async () => {
    await writeFile(at("page.gguf"), "<!DOCTYPE html><html><body>404</body></html>");

    await expect(resolve(at("page.gguf"))).rejects.toMatchObject({
      code: "invalid_model_file",
      detail: expect.stringContaining("web page"),
    });
  });

  it.each([
    ["tensors", 2n ** 60n, 1n],
    ["metadata values", 1n, 2n ** 63n],
  ])("refuses an absurd number of %s at once", async (what, tensors, values) => {
    const file = await header("absurd.gguf", tensors, values);

    await expect(resolve(file)).rejects.toMatchObject({
      code: "invalid_model_file",
      detail: expect.stringContaining(`number of ${what}`),
    });
  });

  it("refuses an array that claims to be longer than the file", async () => {
    const entry = Buffer.alloc(8 + 1 + 4 + 4 + 8);
    entry.writeBigUInt64LE(1n, 0);
    entry.write("a", 8);
    entry.writeUInt32LE(9, 9);
    entry.writeUInt32LE(0, 13);
    entry.writeBigUInt64LE(2n ** 40n, 17);
    const file = await header("array.gguf", 0n, 1n, entry);

    await expect(resolve(file)).rejects.toMatchObject({
      code: "invalid_model_file",
      detail: expect.stringContaining('array "a"'),
    });
  });

  it("refuses a header of zeros behind good counts", async () => {
    const file = await header("zeros.gguf", 2n, 0n, Buffer.alloc(128));

    await expect(resolve(file)).rejects.toMatchObject({
      code: "invalid_model_file",
      detail: expect.stringContaining("has no proper name"),
    });
  });

  it("leads from any part of a split set to the whole", async () => {
    const parts = await makeRandomModel(at("split.gguf"), { parts: 3 });
    const [whole] = await makeRandomModel(at("whole.gguf"));

    const [first, second] = await Promise.all([resolve(parts[0]), resolve(parts[2] ?? "")]);

    expect(second.sizeBytes).toBe(first.sizeBytes);
    expect(Math.abs(first.sizeBytes - (await resolve(whole)).sizeBytes)).toBeLessThan(10_000);
  });

  it("names the part of a split set that is missing, or damaged", async () => {
    const parts = await makeRandomModel(at("gap.gguf"), { parts: 3 });
    const second = parts[1] ?? "";
    await rm(second);

    await expect(resolve(parts[0])).rejects.toMatchObject({
      code: "source_unavailable",
      detail: expect.stringContaining("gap-00002-of-00003.gguf"),
    });

    await corruptFile("empty", good, second);
    await expect(resolve(parts[0])).rejects.toMatchObject({ code: "invalid_model_file", file: second });
  });

  it("refuses a part of a set under another name", async () => {
    const parts = await makeRandomModel(at("renamed.gguf"), { parts: 2 });
    await corruptFile("nan-weights", parts[0], at("alone.gguf"));

    await expect(resolve(at("alone.gguf"))).rejects.toMatchObject({
      code: "invalid_model_file",
      detail: expect.stringContaining("one of 2 parts"),
    });
  });

  it.each([
    ["splitMode", { splitMode: "row" }],
    ["tensorSplit", { tensorSplit: [1, 1] }],
    ["mainGpu", { mainGpu: 1 }],
  ] as const)("refuses %s, and says what could honour it", async (option, options) => {
    await expect(resolve(good, options)).rejects.toMatchObject({
      code: "invalid_option",
      option,
      expected: expect.stringContaining("child process"),
    });
  });

  it("refuses a context that is longer than a model with a table of positions has rows", async () => {
    const [encoder] = await makeEmbeddingModel(at("positions.gguf"));

    await expect(resolve(encoder, { contextSize: 513 })).rejects.toMatchObject({
      code: "invalid_option",
      option: "contextSize",
    });
    await expect(resolve(encoder, { contextSize: 512 })).resolves.toBeDefined();
    await expect(resolve(encoder, { contextSize: 513 })).rejects.toMatchObject({ code: "invalid_option" });
    await expect(resolve(good, { contextSize: 5000 })).resolves.toBeDefined();
  });

  it("stops when the signal aborts, with its reason", async () => {
    const reason = new Error("enough");

    await expect(backend.resolve(good, {}, AbortSignal.abort(reason))).rejects.toBe(reason);
    await expect(backend.resolve(good, {}, never)).resolves.toBeDefined();
  });
});
