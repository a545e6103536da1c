import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { InsufficientMemoryError } from "node-llama-cpp";
import { describe, expect, it } from "vitest";
import { EngineLogError } from "../../../src/backends/node-llama-cpp/engine.js";
import { isOutOfMemory } from "../../../src/backends/node-llama-cpp/out-of-memory.js";
import { makeRandomModel } from "../../../src/testing/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";

const file = useTemporaryFolder();
const canLimit = process.platform === "linux" && existsSync("/usr/bin/prlimit");

describe("an engine that runs out of memory", () => {
  it.skipIf(!canLimit)(
    `is insufficient_memory with what the load needs, gives everything back, and can go on${canLimit ? "" : " (skipped: there is no prlimit)"}`,
    async () => {
      await makeRandomModel(file("wide.gguf"), { preset: "tiny", embeddingLength: 256, heads: 4, kvHeads: 4 });
      const child = fileURLToPath(new URL("./out-of-memory-child.ts", import.meta.url));

      const { stdout } = await promisify(execFile)(process.execPath, ["--import", "tsx", child, file("wide.gguf")], {
        timeout: 30_000,
      });

      const [before, refused, after] = JSON.parse(stdout) as [unknown, Record<string, unknown>, unknown];
      const { estimatedBytes } = refused;
      expect(estimatedBytes).toBeGreaterThan(3 * 2 ** 30);
      expect(refused).toMatchObject({
        code: "insufficient_memory",
        modelId: "m",
        device: "ram",
        requiredBytes: estimatedBytes,
        evictableBytes: 0,
      });
      expect(refused["availableBytes"]).toBeGreaterThan(0);
      expect(refused["message"]).toContain("failed to allocate buffer for kv cache");
      expect(before).toEqual({ loaded: expect.any(Number) });
      expect(after).toEqual(before);
    },
  );
});

describe("isOutOfMemory", () => {
  const logged = (line: string) => new EngineLogError("Loading", [line], new Error("Failed to load model"));

  it.each([
    ["the library's look before a context", new InsufficientMemoryError("A context size of 8 is too large")],
    ["the same, wrapped", new EngineLogError("Creating a context", ["a line"], new InsufficientMemoryError("no"))],
    ["a buffer", logged("alloc_tensor_range: failed to allocate CPU buffer of size 3221225472")],
    ["weights", logged("llama_model_load: error loading model: unable to allocate CPU buffer")],
    ["a mapping", logged("llama_model_load: error loading model: mmap failed: Cannot allocate memory")],
    ["CUDA", logged("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory")],
    ["Vulkan", logged("ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory")],
    ["C++ without a log", new Error("std::bad_alloc")],
  ])("is true of %s", async (_, error) => {
    expect(await isOutOfMemory(error)).toBe(true);
  });

  it.each([
    ["a missing tensor", logged("llama_model_load: error loading model: missing tensor 'blk.2.ffn_up.weight'")],
    ["a failure without a reason", new Error("Failed to create context")],
    ["what is no error", "out of memory"],
  ])("is false of %s", async (_, error) => {
    expect(await isOutOfMemory(error)).toBe(false);
  });
});
