import { blank } from "../../src/manager/decision.js";
import { loadSettings } from "../../src/manager/options.js";
import { LiveModel } from "../../src/table/live-model.js";
import { createModelTable } from "../../src/table/model-table.js";
import type { ModelTable } from "../../src/table/model-table.js";
import { FakeBackend } from "../../src/testing/index.js";

/** A table as the manager has it, with so many ready models of the fake backend, and their ids. */
export async function readyTable(models: number): Promise<{ table: ModelTable; ids: readonly string[] }> {
  const backend = new FakeBackend();
  const { table, writer } = createModelTable([], "unlimited");
  const ids = Array.from({ length: models }, (_, index) => `model-${index}`);
  for (const id of ids) {
    const live = new LiveModel({ ...(await fakeBacking(backend)) });
    writer.put({ ...blank(id, "m.gguf", loadSettings({}, Infinity), true), status: "ready", live });
  }
  return { table, ids };
}

async function fakeBacking(backend: FakeBackend) {
  const { signal } = new AbortController();
  const model = await backend.resolve("m.gguf", {}, signal);
  const profile = {
    mode: "server",
    capabilities: ["generate"],
    contextSize: 8,
    parallel: 1,
    threads: 1,
    maxQueue: 1,
  } as const;
  return backend.start(
    { modelId: "m", incarnation: 1, model, profile, gpuLayers: 0 },
    { signal, maxThreads: 1, onProgress: () => undefined },
  );
}
