/** Loads a model whose contexts are larger than what this process may still allocate, then one that fits. */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import type { ModelProfile } from "../../../src/backends/backend.js";
import { nodeLlamaCpp } from "../../../src/backends/node-llama-cpp/index.js";
import { isModelSupervisorError } from "../../../src/index.js";

const backend = nodeLlamaCpp({ calibrationFile: false });
const { signal } = new AbortController();
const model = await backend.resolve(process.argv[2] ?? "", {}, signal);
const base = { mode: "server", capabilities: ["generate"], threads: 1, maxQueue: 1 } as const;

async function load(size: Pick<ModelProfile, "contextSize" | "parallel">): Promise<unknown> {
  const profile = { ...base, ...size };
  const { gpuLayers, ramBytes } = await backend.estimate(model, profile);
  const spec = { modelId: "m", incarnation: 1, model, profile, gpuLayers };
  try {
    const backing = await backend.start(spec, { signal, maxThreads: 1 });
    await backing.dispose();
    return { loaded: ramBytes };
  } catch (error) {
    if (isModelSupervisorError(error)) return { ...error.toJSON(), estimatedBytes: ramBytes };
    return { untyped: String(error), estimatedBytes: ramBytes };
  }
}

const outcomes = [await load({ contextSize: 128, parallel: 1 })];
// Linux counts the address space: far less than the large load needs, and enough for all else
const addressSpaceBytes = Number(/^VmSize:\s+(\d+) kB$/m.exec(readFileSync("/proc/self/status", "utf8"))?.[1]) * 1024;
execFileSync("/usr/bin/prlimit", ["--pid", `${process.pid}`, `--as=${addressSpaceBytes + 2 ** 30}`]);
outcomes.push(await load({ contextSize: 8192, parallel: 96 }), await load({ contextSize: 128, parallel: 1 }));
process.stdout.write(JSON.stringify(outcomes));
