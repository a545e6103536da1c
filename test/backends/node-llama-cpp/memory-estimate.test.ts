import type { Llama, LlamaModel } from "node-llama-cpp";
import { beforeAll, describe, expect, it } from "vitest";
import { sharedEngine } from "../../../src/backends/node-llama-cpp/engine.js";
import { resolveGgufModel } from "../../../src/backends/node-llama-cpp/gguf-file.js";
import { estimateMemory, wantedWeights } from "../../../src/backends/node-llama-cpp/memory-estimate.js";
import { SharedWeights } from "../../../src/backends/node-llama-cpp/shared-weights.js";
import { makeEmbeddingModel, makeRandomModel, makeRankingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { backend, never, profileOf, resolve, startResolved, type ProfileOptions } from "./engine-fixture.js";

const at = useTemporaryFolder();
const files: Record<string, string> = {};

beforeAll(async () => {
  [files["tiny F32"]] = await makeRandomModel(at("tiny.gguf"));
  [files["small F16"]] = await makeRandomModel(at("small.gguf"), { preset: "small" });
  [files["small Q8_0"]] = await makeRandomModel(at("q8.gguf"), { preset: "small", format: "Q8_0" });
  [files["short context"]] = await makeRandomModel(at("short.gguf"), { contextLength: 128 });
  [files["encoder"]] = await makeEmbeddingModel(at("encoder.gguf"));
  [files["ranker"]] = await makeRankingModel(at("ranker.gguf"));
});

describe("estimate", () => {
  it.each<[string, ProfileOptions]>([
    ["tiny F32", { contextSize: 2048, parallel: 4 }],
    ["tiny F32", { contextSize: 300, parallel: 3 }],
    ["tiny F32", { contextSize: 2048, capabilities: ["embed"] }],
    ["tiny F32", { contextSize: 1024, capabilities: ["generate", "embed"] }],
    ["tiny F32", { mode: "direct", contextSize: 1024, capabilities: ["chat"] }],
    ["tiny F32", { mode: "server", contextSize: 512, capabilities: ["generate", "chat", "embed"] }],
    ["small F16", { contextSize: 512, kvCacheType: "q8_0", capabilities: ["generate", "embed"] }],
    ["tiny F32", { contextSize: 512, flashAttention: false, batchSize: 64 }],
    ["small F16", { contextSize: 2048, parallel: 8 }],
    ["small F16", { contextSize: 1024, capabilities: ["generate", "embed"] }],
    ["small Q8_0", { contextSize: 512 }],
    ["short context", { contextSize: 128, parallel: 4 }],
    ["encoder", { contextSize: 512 }],
    ["encoder", { contextSize: 128 }],
    ["ranker", { contextSize: 512 }],
    ["encoder", { contextSize: 256, threads: 2 }],
    ["ranker", { contextSize: 256, threads: 2 }],
    ["tiny F32", { contextSize: 512, threads: 3, parallel: 2, capabilities: ["generate", "embed"], mode: "server" }],
  ])("says of %s %j what the engine reports afterwards, within 1 percent", async (name, options) => {
    const model = await resolve(files[name] ?? "");
    const profile = profileOf(model, options);

    const estimate = await backend.estimate(model, profile);
    const backing = await startResolved(model, profile, { maxThreads: profile.threads });
    const reported = backing.memory();
    await backing.dispose();

    expect(Math.abs(reported.ramBytes - estimate.ramBytes)).toBeLessThan(estimate.ramBytes * 0.01);
    expect(reported.mappedBytes).toBe(estimate.mappedBytes);
    expect(estimate.mappedBytes).toBeGreaterThan(0);
    expect(backing.memory()).toEqual({ ramBytes: 0, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes: 0 });
  });

  it("counts a context for each text at a time: as many as there are threads, or parallel if that is less", async () => {
    const model = await resolve(files["encoder"] ?? "");
    const bytes = async (threads: number, parallel: number) =>
      (await backend.estimate(model, profileOf(model, { threads, parallel }))).ramBytes;
    const [one, two] = [await bytes(1, 4), await bytes(2, 4)];
    const context = two - one;

    expect(context).toBeGreaterThan(100_000);
    expect(await bytes(4, 4)).toBe(one + 3 * context);
    expect(await bytes(4, 2)).toBe(two);
    expect(await bytes(2, 1)).toBe(one);
  });

  it.each(["auto", "max", 0, 5, undefined] as const)("turns gpuLayers %s into a number", async (gpuLayers) => {
    const model = await resolve(files["tiny F32"] ?? "");

    const estimate = await backend.estimate(model, profileOf(model, { gpuLayers }));

    expect(Number.isInteger(estimate.gpuLayers)).toBe(true);
  });

  it("takes as many layers as a copy has that is there, where as many as fit are wanted, so that it is shared", async () => {
    const llama = await sharedEngine({ gpu: "auto", build: "never" });
    const withGpu: Llama = Object.create(llama, { gpu: { value: "cuda" }, supportsGpuOffloading: { value: true } });
    const model = await resolveGgufModel(files["tiny F32"] ?? "", {}, never);
    const weights = new SharedWeights<LlamaModel>();
    const layers = async (gpuLayers: "auto" | "max" | number) =>
      (await estimateMemory(model, profileOf(model, { gpuLayers }), { llama: withGpu, weights, memory: undefined }))
        .gpuLayers;
    await weights.join(wantedWeights(model, {}, 2), { signal: never }, () => new Promise(() => undefined));

    expect([await layers("auto"), await layers(1), await layers("max")]).toEqual([2, 1, 5]);
  });

  it("refuses sizes that the engine cannot count", async () => {
    const model = await resolve(files["tiny F32"] ?? "");

    await expect(backend.estimate(model, profileOf(model, { contextSize: 2 ** 31 }))).rejects.toMatchObject({
      code: "invalid_option",
      option: "contextSize",
    });
    await expect(backend.estimate(model, profileOf(model, { parallel: 257 }))).rejects.toMatchObject({
      code: "invalid_option",
      option: "parallel",
    });
  });

  it("refuses a quantized KV cache for a model whose heads are no multiple of its blocks", async () => {
    const model = await resolve(files["tiny F32"] ?? "");

    await expect(backend.estimate(model, profileOf(model, { kvCacheType: "q8_0" }))).rejects.toMatchObject({
      option: "kvCacheType",
      expected: expect.stringContaining("16 numbers"),
    });
  });

  it("refuses a quantized KV cache without flash attention, which it needs", async () => {
    const model = await resolve(files["small F16"] ?? "");

    await expect(
      backend.estimate(model, profileOf(model, { kvCacheType: "q8_0", flashAttention: false })),
    ).rejects.toMatchObject({ option: "kvCacheType" });
    await expect(
      backend.estimate(model, profileOf(model, { kvCacheType: "f16", flashAttention: false })),
    ).resolves.toBeDefined();
  });

  it("counts fewer bytes for a quantized KV cache", async () => {
    const model = await resolve(files["small F16"] ?? "");
    const bytes = async (kvCacheType: "f16" | "q8_0" | "q4_0") =>
      (await backend.estimate(model, profileOf(model, { kvCacheType, contextSize: 2048, parallel: 8 }))).ramBytes;

    const [f16, q8, q4] = [await bytes("f16"), await bytes("q8_0"), await bytes("q4_0")];

    expect(f16).toBeGreaterThan(q8);
    expect(q8).toBeGreaterThan(q4);
  });
});
