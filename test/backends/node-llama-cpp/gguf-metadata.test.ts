import { fork } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { beforeAll, describe, expect, it } from "vitest";
import { readGgufFileInfo } from "node-llama-cpp";
import { metadataProblem, TOKENS_PER_TURN } from "../../../src/backends/node-llama-cpp/gguf-metadata.js";
import { makeEmbeddingModel, makeRandomModel, makeRankingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { rejection } from "../../support/test-supervisor.js";
import { resolve } from "./engine-fixture.js";

const at = useTemporaryFolder();
let sound = Buffer.alloc(0);
let encoder = Buffer.alloc(0);

beforeAll(async () => {
  const [file] = await makeRandomModel(at("sound.gguf"), { preset: "tiny" });
  sound = await readFile(file);
  const [other] = await makeEmbeddingModel(at("encoder.gguf"));
  encoder = await readFile(other);
  await makeRankingModel(at("ranker.gguf"));
});

/** The file with the value of a 32-bit number in its metadata changed, or a key renamed. */
async function withNumber(key: string, value: number, from = sound): Promise<string> {
  const bytes = Buffer.from(from);
  bytes.writeUInt32LE(value, bytes.indexOf(key) + key.length + 4);
  await writeFile(at("changed.gguf"), bytes);
  return at("changed.gguf");
}

async function withText(from: string, to: string): Promise<string> {
  const bytes = Buffer.from(sound);
  bytes.write(to, bytes.indexOf(from), "latin1");
  await writeFile(at("changed.gguf"), bytes);
  return at("changed.gguf");
}

describe("a file that is sound by its lengths", () => {
  it.each([
    ["llama.embedding_length", 0, /embedding_length is missing or not above 0/],
    ["llama.block_count", 0, /block_count is missing or not above 0/],
    ["llama.attention.head_count", 0, /head_count is missing or not above 0/],
    ["llama.attention.head_count", 1000, /more than the embedding is wide/],
    ["llama.attention.head_count_kv", 3, /no multiple of head_count_kv \(3\)/],
    ["llama.feed_forward_length", 0, /feed_forward_length is not above 0/],
    ["llama.block_count", 513, /block_count is 513, more layers than the engine knows/],
    ["llama.attention.layer_norm_rms_epsilon", 0xbf800000, /layer_norm_rms_epsilon is -1/],
    ["llama.attention.layer_norm_rms_epsilon", 0x7fc00000, /layer_norm_rms_epsilon is NaN/],
  ])("with %s = %d is refused, and not shown to native code", async (key, value, reason) => {
    const error = await rejection(resolve(await withNumber(key, value)));

    expect(error).toMatchObject({ code: "invalid_model_file", detail: expect.stringMatching(reason) });
  });

  it.each([
    ["bert.attention.layer_norm_epsilon", 0xbf800000, /layer_norm_epsilon is -1/],
    ["bert.attention.head_count", 5, /has 64 rows, the metadata of bert says 60/],
    ["bert.pooling_type", 5, /pooling_type is 5, which the engine does not know/],
  ])("that embeds, with %s = %d, is refused as well", async (key, value, reason) => {
    const error = await rejection(resolve(await withNumber(key, value, encoder)));

    expect(error).toMatchObject({ code: "invalid_model_file", detail: expect.stringMatching(reason) });
  });

  it.each([
    ["llama.feed_forward_length", "llama.feed_forward_lengtX", /feed_forward_length is missing/],
    ["<0x07>", "<0x0_>", /no token for the byte <0x07>/],
    ["<0x41>", "<0x42>", /the same text more than once/],
    ["<0x41>", "<0\u000041>", /NUL character/],
    ["llama.block_count", "\0lama.block_count", /has no proper name/],
  ])("with %j turned into %j is refused", async (from, to, reason) => {
    const error = await rejection(resolve(await withText(from, to)));

    expect(error).toMatchObject({ code: "invalid_model_file", detail: expect.stringMatching(reason) });
  });

  it("is let in as it is", async () => {
    await writeFile(at("changed.gguf"), sound);

    expect(await resolve(at("changed.gguf"))).toMatchObject({ defaultCapabilities: ["generate", "chat"] });
  });

  it("gives way to other work while a large vocabulary is looked through", async () => {
    const read = await readGgufFileInfo(at("sound.gguf"), { logWarnings: false });
    const { tokenizer } = read.metadata;
    const turns = 20;
    const more = Array.from({ length: turns * TOKENS_PER_TURN }, (_, index) => `token ${index}`);
    const ggml = { ...tokenizer.ggml, tokens: [...tokenizer.ggml.tokens, ...more] };
    const info = { ...read, metadata: { ...read.metadata, tokenizer: { ...tokenizer, ggml } } };
    let others = 0;
    const count = () => {
      others++;
      counting = setImmediate(count);
    };
    let counting = setImmediate(count);

    const problem = await metadataProblem(info, new Map());
    clearImmediate(counting);

    expect(problem).toBeUndefined();
    expect(others).toBeGreaterThanOrEqual(turns - 1);
  });

  it("never ends the process, whatever bytes of its metadata are flipped", { timeout: 60_000 }, async () => {
    const files = ["sound", "encoder", "ranker"].map((name) => at(`${name}.gguf`));
    const child = fork(fileURLToPath(new URL("./flipped-bytes-child.ts", import.meta.url)), ["100", ...files], {
      execArgv: ["--import", "tsx"],
      silent: true,
    });
    let flips: unknown;
    child.on("message", (message) => (flips = message));

    const exit = await new Promise((done) => child.on("exit", (code, signal) => done(signal ?? code)));

    expect(exit, `after ${JSON.stringify(flips)}`).toBe(0);
  });
});
