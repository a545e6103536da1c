/** In a file of its own: the engine of a process is started once. */
import { describe, expect, it, vi } from "vitest";
import { nodeLlamaCpp } from "../../../src/index.js";

const started = vi.hoisted((): unknown[] => []);

vi.mock("node-llama-cpp", () => ({
  LlamaLogLevel: { warn: "warn", error: "error", fatal: "fatal" },
  getLlama: (options: unknown) => {
    started.push(options);
    return Promise.resolve({ gpu: false });
  },
}));

describe("nodeLlamaCpp({ build })", () => {
  it("reaches the library as it is, once", async () => {
    const backend = nodeLlamaCpp({ build: "try", gpu: false });
    await backend.devices();
    await backend.devices();

    expect(started).toEqual([expect.objectContaining({ build: "try", gpu: false, maxThreads: 1 })]);
  });
});
