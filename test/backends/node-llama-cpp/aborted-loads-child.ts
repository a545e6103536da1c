/** Aborts loads at all kinds of moments; the process must then end by itself. */
import type { ModelProfile } from "../../../src/backends/backend.js";
import { nodeLlamaCpp } from "../../../src/backends/node-llama-cpp/index.js";

const backend = nodeLlamaCpp();
const model = await backend.resolve(process.argv[2] ?? "", {}, new AbortController().signal);
const profile: ModelProfile = {
  mode: "server",
  capabilities: ["generate"],
  contextSize: 256,
  parallel: 1,
  threads: 1,
  maxQueue: 1,
};
let aborted = 0;
for (let round = 0; round < 40; round++) {
  const controller = new AbortController();
  const spec = { modelId: "aborted", incarnation: round, model, profile, gpuLayers: 0 };
  const onProgress = process.argv[3] === "silent" ? undefined : () => undefined;
  const starting = backend.start(spec, { signal: controller.signal, maxThreads: 1, onProgress });
  setTimeout(() => controller.abort(new Error("aborted")), round % 20);
  await starting.then(
    (backing) => backing.dispose(),
    () => aborted++,
  );
}
process.stdout.write(`aborted: ${aborted}\n`);
