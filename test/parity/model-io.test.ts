import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { describe, expect, it, onTestFinished } from "vitest";
import { resolveGgufModel } from "../../src/backends/node-llama-cpp/gguf-file.js";
import type { EngineOptions, ModelManager, SupervisionNode } from "../../src/index.js";
import { makeRecitingModel } from "../../src/testing/gguf/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** A folder of its own, gone when the test ends. */
async function folder(): Promise<string> {
  const made = await mkdtemp(path.join(os.tmpdir(), "model-io-"));
  onTestFinished(() => rm(made, { recursive: true, force: true }));
  return made;
}

function resolve(source: string) {
  return resolveGgufModel(source, {}, new AbortController().signal);
}

/** Names of the children of one part of the tree. */
function childrenOf(models: ModelManager, part: string): string[] {
  const find = (nodes: readonly SupervisionNode[]) => nodes.find(({ id }) => id === part);
  return find(models.tree().children)?.children.map(({ id }) => id) ?? [];
}

/** Every option that a load passes on to the backend, with a value that is not its default. */
const ENGINE_OPTIONS = {
  gpuLayers: 7,
  splitMode: "row",
  tensorSplit: [1, 2],
  mainGpu: 1,
  offloadKqv: false,
  contextSize: 1_024,
  parallel: 2,
  kvCacheType: "q8_0",
  batchSize: 128,
  flashAttention: true,
  checkTensors: true,
  threads: 3,
  decodeWidth: 2,
  maxQueue: 9,
} as const satisfies Required<EngineOptions>;

describe("resolve of a path", () => {
  it("tells the size on disk", async () => {
    const file = path.join(await folder(), "model.gguf");
    await makeRecitingModel(file, { text: "Hello world." });

    const model = await resolve(file);

    expect(model).toMatchObject({ source: file, sizeBytes: (await stat(file)).size });
  });

  it("tells why the file cannot be read, rather than only that", async () => {
    const missing = path.join(await folder(), "missing.gguf");

    const failed = await rejection(resolve(missing));

    expect(failed).toMatchObject({ code: "source_unavailable", source: missing, cause: { code: "ENOENT" } });
    expect(failed).toHaveProperty("detail", expect.stringContaining("does not exist"));
  });

  it("refuses a directory", async () => {
    const failed = await rejection(resolve(await folder()));

    expect(failed).toMatchObject({ code: "source_unavailable", detail: expect.stringContaining("directory") });
  });

  it("refuses a file that is not GGUF before the engine sees it", async () => {
    const file = path.join(await folder(), "text.gguf");
    await writeFile(file, "this is not a model, but it is long enough to have a header");

    const failed = await rejection(resolve(file));

    expect(failed).toMatchObject({ code: "invalid_model_file", file });
  });
});

describe("load options", () => {
  it("that are the engine's reach the backend, every one of them", async () => {
    const { models, backend } = await startTestSupervisor({ fake: { gpuBytes: [1e9, 1e9] } });

    await models.load("chat", "chat.gguf", ENGINE_OPTIONS);

    expect(backend.lastStart?.spec.profile).toEqual({
      ...ENGINE_OPTIONS,
      threadsAreSet: true,
      mode: "server",
      capabilities: ["generate", "chat"],
    });
    expect(backend.lastStart?.spec.gpuLayers).toBe(7);
  });

  it("that are the engine's reach the backend from a declaration, too", async () => {
    const { models, backend } = await startTestSupervisor({
      fake: { gpuBytes: [1e9, 1e9] },
      models: [{ id: "chat", source: "chat.gguf", default: true, ...ENGINE_OPTIONS }],
    });

    await models.ready();

    expect(backend.lastStart?.spec.profile).toEqual({
      ...ENGINE_OPTIONS,
      threadsAreSet: true,
      mode: "server",
      capabilities: ["generate", "chat"],
    });
  });

  it("that are the manager's never reach the backend", async () => {
    const { models, backend } = await startTestSupervisor();

    await models.load("chat", "chat.gguf", {
      default: true,
      signal: new AbortController().signal,
      onProgress: () => undefined,
      gpuLayers: 0,
    });

    const { spec } = backend.lastStart ?? {};
    expect(Object.keys(spec ?? {}).toSorted()).toEqual(["gpuLayers", "incarnation", "model", "modelId", "profile"]);
    expect(Object.keys(spec?.profile ?? {}).toSorted()).toEqual([
      "capabilities",
      "contextSize",
      "gpuLayers",
      "maxQueue",
      "mode",
      "parallel",
      "threads",
      "threadsAreSet",
    ]);
    expect(spec).toMatchObject({ modelId: "chat", gpuLayers: 0, profile: { gpuLayers: 0, parallel: 4 } });
  });

  it("that do not exist fail loudly, naming the nearest one that does", async () => {
    const { models, backend } = await startTestSupervisor();
    const misspelt: object = { paralell: 2 };

    const refused = await rejection(models.load("probe", "probe.gguf", misspelt));
    const right = await models.load("probe", "probe.gguf", { parallel: 2 });

    expect(refused).toMatchObject({
      code: "invalid_option",
      option: "paralell",
      expected: expect.stringContaining('did you mean "parallel"'),
    });
    expect(right.parallel).toBe(2);
    expect(backend.log).toEqual(["start probe"]);
  });

  it("that are like no other are refused with all that there are", async () => {
    const { models } = await startTestSupervisor();
    const unknown: object = { definitelyNotAnOption: 1 };

    const refused = await rejection(models.load("probe", "probe.gguf", unknown));

    const expected = ["capabilities", "mode", "default", "signal", "onProgress", ...Object.keys(ENGINE_OPTIONS)];
    for (const option of expected) expect(refused).toHaveProperty("expected", expect.stringContaining(option));
  });
});

describe("backing", () => {
  it("is a child of the tree, named after the model and its life", async () => {
    const { models } = await startTestSupervisor();

    const { incarnation } = await models.load("chat", "chat.gguf");

    expect(childrenOf(models, "backings")).toEqual([`backing:chat#${incarnation}`]);
  });

  it("that crashed is not started again", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");

    backend.crash("chat");
    await settle();

    expect(backend.log).toEqual(["start chat", "dispose chat"]);
    expect(childrenOf(models, "backings")).toEqual([]);
    expect(models.info("chat")?.status).toBe("error");
  });

  it("is disposed and gone from the tree after an unload", async () => {
    const { models, backend } = await startTestSupervisor();
    await models.load("chat", "chat.gguf");
    await models.load("other", "other.gguf");

    await models.unload("chat");
    await settle();

    expect(backend.log).toEqual(["start chat", "start other", "dispose chat"]);
    expect(childrenOf(models, "backings")).toEqual([expect.stringMatching(/^backing:other#/)]);
    expect(childrenOf(models, "loads")).toEqual([]);
  });

  it("that failed to start leaves no child", async () => {
    const { models, backend } = await startTestSupervisor();
    backend.fail("start", new Error("no start"));

    await rejection(models.load("chat", "chat.gguf"));
    await settle();

    expect(childrenOf(models, "backings")).toEqual([]);
    expect(childrenOf(models, "loads")).toEqual([]);
  });
});
