import { describe, expect, it, vi } from "vitest";
import { bytes, failureOf, startPlace } from "./sources-fixture.js";

// a disk that is full can be had by a preload in the thread of the download only
vi.mock(import("node:worker_threads"), async (importOriginal) => {
  const original = await importOriginal();
  const preload = new URL("full-disk-preload.js", import.meta.url).href;
  class Worker extends original.Worker {
    constructor(file: string | URL, options?: import("node:worker_threads").WorkerOptions) {
      super(file, { ...options, execArgv: ["--import", preload] });
    }
  }
  return { ...original, Worker };
});

describe("a disk that fills up during the download", () => {
  it.each(["ENOSPC", "EDQUOT"])("is storage_full at once, and not the end of the process: %s", async (code) => {
    vi.stubEnv("TEST_WRITE_ERROR", code);
    const { hub, find, files } = await startPlace();
    const body = bytes(1);
    hub.put("maker/Model-GGUF", "Model-Q8_0.gguf", body);

    const error = await failureOf(find("hf:maker/Model-GGUF/Model-Q8_0.gguf"));

    expect(error).toMatchObject({ code: "storage_full", pathKind: "models", requiredBytes: body.length });
    expect(await files()).toEqual([]);
  });
});
