import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { afterAll, beforeAll } from "vitest";
import { nodeLlamaCpp } from "../../src/backends/node-llama-cpp/index.js";
import { makeEmbeddingModel, makeRankingModel, makeRecitingModel } from "../../src/testing/gguf/index.js";
import { describeBackendContract } from "./backend-contract.js";

let folder = "";
const file = (name: string) => path.join(folder, name);
const text = "one two three four";

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), "contract-"));
  await makeRecitingModel(file("talker.gguf"), { text });
  await makeEmbeddingModel(file("embedder.gguf"));
  await makeRankingModel(file("ranker.gguf"));
});

afterAll(() => rm(folder, { recursive: true }));

describeBackendContract("node-llama-cpp", () => ({
  backend: nodeLlamaCpp(),
  talker: { source: file("talker.gguf"), text },
  embedder: file("embedder.gguf"),
  ranker: file("ranker.gguf"),
  missing: file("nowhere.gguf"),
}));
