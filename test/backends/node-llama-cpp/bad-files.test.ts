import { renameSync, rmSync } from "node:fs";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { beforeAll, describe, expect, it, vi } from "vitest";
import { sharedEngine } from "../../../src/backends/node-llama-cpp/engine.js";
import { ModelSupervisor } from "../../../src/index.js";
import type { LoadOptions, ModelManager } from "../../../src/index.js";
import { corruptFile, makeRandomModel, type Corruption } from "../../../src/testing/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { rejection } from "../../support/test-supervisor.js";

const at = useTemporaryFolder();
let sound = "";
let models: ModelManager;

beforeAll(async () => {
  [sound] = await makeRandomModel(at("sound.gguf"));
  models = await ModelSupervisor.start({ name: "bad-files", memoryBudget: "1GiB", maxThreads: 1 });
  return () => models.close({ timeoutMs: 0 });
});

const damaged = (kind: Corruption) => () => corruptFile(kind, sound, at(`${kind}.gguf`));

async function webPage(): Promise<string> {
  await writeFile(at("page.gguf"), "<!DOCTYPE html><html><body>404</body></html>");
  return at("page.gguf");
}

/** A header that promises 2^60 tensors. */
async function absurd(): Promise<string> {
  const header = Buffer.alloc(24);
  header.write("GGUF");
  header.writeUInt32LE(3, 4);
  header.writeBigUInt64LE(2n ** 60n, 8);
  await writeFile(at("absurd.gguf"), header);
  return at("absurd.gguf");
}

async function folder(): Promise<string> {
  await mkdir(at("folder.gguf"), { recursive: true });
  return at("folder.gguf");
}

async function incomplete(): Promise<string> {
  const [file] = await makeRandomModel(at("incomplete.gguf"), { omitTensor: "blk.2.ffn_up.weight" });
  return file;
}

/** A set of three parts without its second; led to by its third. */
async function gap(): Promise<string> {
  const [, second = "", third = ""] = await makeRandomModel(at("gap.gguf"), { parts: 3 });
  await rm(second);
  return third;
}

describe("load of a file that is no model, or no more", () => {
  it.each<[string, () => Promise<string>, string, string, LoadOptions?]>([
    ["missing", async () => at("nothing.gguf"), "source_unavailable", "does not exist"],
    ["empty", damaged("empty"), "invalid_model_file", "it is empty"],
    ["a directory", folder, "source_unavailable", "a directory"],
    ["a web page", webPage, "invalid_model_file", "a web page"],
    ["of another format", damaged("wrong-magic"), "invalid_model_file", 'does not start with "GGUF"'],
    ["of another version", damaged("wrong-version"), "invalid_model_file", "version 99"],
    ["cut in the header", damaged("cut-header"), "invalid_model_file", "the file of 700 bytes"],
    ["cut in the tensor data", damaged("cut-data"), "invalid_model_file", "cut off"],
    ["without a tensor", incomplete, "invalid_model_file", "missing tensor 'blk.2.ffn_up.weight'"],
    ["with absurd counts", absurd, "invalid_model_file", "number of tensors is 1152921504606847000"],
    ["with NaN weights", damaged("nan-weights"), "invalid_model_file", "has invalid data", { checkTensors: true }],
    ["a set with a gap", gap, "source_unavailable", "gap-00002-of-00003.gguf"],
  ])("that is %s says so, names it, and leaves nothing behind", async (_, make, code, detail, options) => {
    const file = await make();

    const error = await rejection(models.load("bad", file, options));

    expect(error).toMatchObject({ code, detail: expect.stringContaining(detail) });
    expect(error).toHaveProperty("message", expect.stringContaining(file));
    expect(models.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([0]);
    expect(models.memory().unreleased).toEqual([]);
    expect(models.list()).toEqual([]);
    await models.load("good", sound, { contextSize: 64 });
    expect((await models.generate("good", "hello", { maxTokens: 2 })).usage.completionTokens).toBe(2);
    await models.unload("good");
  });

  it("has the engine's own lines in its cause", async () => {
    const missing = await rejection(models.load("bad", await incomplete()));
    const nan = await rejection(models.load("bad", await damaged("nan-weights")(), { checkTensors: true }));

    expect(missing).toHaveProperty("cause.message", expect.stringContaining("error loading model: missing tensor"));
    expect(nan).toHaveProperty("cause.message", expect.stringContaining("found tensors with invalid data"));
  });

  it("looks at every weight only where checkTensors says so", async () => {
    const file = await damaged("nan-weights")();

    await expect(models.load("unchecked", file, { contextSize: 64 })).resolves.toMatchObject({ status: "ready" });
    await models.unload("unchecked");
    await expect(models.load("sound", sound, { contextSize: 64, checkTensors: true })).resolves.toBeDefined();
    await models.unload("sound");
  });

  it.each<[string, string, (file: string, other: string) => void]>([
    ["replaced by another model", "invalid_model_file", (file, other) => renameSync(other, file)],
    ["removed", "source_unavailable", (file) => rmSync(file)],
  ])("that is %s while it is loaded gives the load up", async (_, code, change) => {
    const [file] = await makeRandomModel(at("changing.gguf"));
    const [other] = await makeRandomModel(at("other.gguf"), { seed: 2 });
    const llama = await sharedEngine({ gpu: "auto", build: "never" });
    const load = llama.loadModel.bind(llama);
    const engine = vi.spyOn(llama, "loadModel").mockImplementationOnce(async (options) => {
      const native = await load(options);
      change(file, other);
      return native;
    });
    const before = (await llama.getLlamaMemoryUsage()).cpuRam;

    const error = await rejection(models.load("bad", file, { contextSize: 64 }));
    engine.mockRestore();

    expect(error).toMatchObject({ code });
    expect((await llama.getLlamaMemoryUsage()).cpuRam).toBe(before);
    expect(models.memory().devices.map(({ reservedBytes }) => reservedBytes)).toEqual([0]);
    expect(models.list()).toEqual([]);
  });
});
