/** The backend that runs GGUF files through node-llama-cpp in this process. */
import type { Llama } from "node-llama-cpp";
import { rmSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import type { LlamaModel } from "node-llama-cpp";
import { InsufficientMemoryError, InvalidModelFileError, isModelSupervisorError } from "../../errors.js";
import type { DeviceInfo } from "../../model.js";
import { ramLimits } from "../../process-limits.js";
import type { Backend, Estimate, ResolvedModel, StartSpec } from "../backend.js";
import { checkBackendOptions } from "./backend-options.js";
import { sharedEngine } from "./engine.js";
import type { BuildChoice, GpuChoice } from "./engine-choice.js";
import { GgufModel, resolveGgufModel } from "./gguf-file.js";
import { CalibrationFile, defaultCalibrationPath } from "./layout/calibration-file.js";
import { estimateMemory, insights } from "./memory-estimate.js";
import { isOutOfMemory } from "./out-of-memory.js";
import { localFile } from "./sources/local-files.js";
import { SharedWeights } from "./shared-weights.js";
import { sourceSettings } from "./sources/settings.js";
import { startBacking } from "./start.js";

/** Options of {@link nodeLlamaCpp}. */
export interface NodeLlamaCppOptions {
  /**
   * The kind of GPU to use. All supervisors of a process share one engine: the first one decides, and another one that
   * asks for something else is refused.
   * @defaultValue `"auto"`: the best kind that works on this machine, else the CPU
   */
  readonly gpu?: GpuChoice | undefined;
  /**
   * Whether the engine's library may be compiled on this machine. A library that was compiled for the machine is 1.3 to 1.5
   * times as fast as the prebuilt one with several streams on a CPU; see the README. As for `gpu`, the first one decides.
   * @defaultValue `"never"`
   */
  readonly build?: BuildChoice | undefined;
  /**
   * The file in which it is remembered how the slots of each model are run best, which is measured when a model is loaded
   * for the first time (two to four seconds, where there is a choice). `false`: nothing is measured.
   * @defaultValue `model-supervisor/calibrations.json` in the user's cache folder
   */
  readonly calibrationFile?: string | false | undefined;
  /**
   * Folder of downloaded models; made when it is needed.
   * @defaultValue the library's own, `~/.node-llama-cpp/models`
   */
  readonly modelsDir?: string | undefined;
}

/**
 * The default engine: GGUF files through llama.cpp, in this process. The library is loaded by the first call that needs
 * it and not by the import.
 *
 * @throws InvalidOptionError
 *
 * @example
 * ```ts
 * await using models = await ModelSupervisor.start({ backend: nodeLlamaCpp({ gpu: false }) });
 * ```
 */
export function nodeLlamaCpp(options: NodeLlamaCppOptions = {}): Backend {
  const {
    gpu = "auto",
    build = "never",
    calibrationFile = defaultCalibrationPath(),
    modelsDir,
  } = checkBackendOptions(options);
  const engine = () => sharedEngine({ gpu, build });
  const memory = calibrationFile === false ? undefined : new CalibrationFile(calibrationFile);
  const weights = new SharedWeights<LlamaModel>();
  return {
    name: "node-llama-cpp",

    async devices() {
      return devicesOf(await engine());
    },

    async resolve(source, engineOptions, signal, { mayDownload = true, onDownload } = {}) {
      const headersIn = mayDownload ? undefined : () => temporaryFolder(signal);
      const wish = { headersIn, signal, onDownload };
      const model = await resolveGgufModel(source, engineOptions, signal, () =>
        localFile(source, sourceSettings(modelsDir), wish),
      );
      const facts = await insights(model, await engine());
      signal.throwIfAborted();
      if (facts.isSupportedByLlamaCpp) return model;
      throw new InvalidModelFileError(
        model.files[0].path,
        `this engine does not know the architecture "${model.info.metadata.general.architecture}"`,
      );
    },

    async estimate(model, profile) {
      return estimateMemory(own(model), profile, { llama: await engine(), weights, memory });
    },

    async start(spec, context) {
      const model = own(spec.model);
      const parts = { llama: await engine(), weights, memory };
      try {
        return await startBacking(spec, model, context, parts);
      } catch (error) {
        if (isModelSupervisorError(error) || context.signal.aborted || !(await isOutOfMemory(error))) throw error;
        const need = await estimateMemory(model, spec.profile, parts);
        throw outOfMemory(spec, need, await devicesOf(parts.llama), error);
      }
    },
  };
}

/** The engine does not say which device was full: with layers on a GPU, it is told of all of them together. */
function outOfMemory(
  { modelId, gpuLayers }: StartSpec,
  { ramBytes, gpuWeightsBytes, gpuContextBytes }: Estimate,
  devices: readonly DeviceInfo[],
  cause: unknown,
): InsufficientMemoryError {
  const requiredBytes = ramBytes + gpuWeightsBytes + gpuContextBytes;
  const device = gpuLayers > 0 ? "total" : "ram";
  const pools = devices.filter((pool) => device === "total" || pool.device === "ram");
  const availableBytes = pools.reduce((sum, { freeBytes }) => sum + freeBytes, 0);
  return new InsufficientMemoryError({ modelId, device, requiredBytes, availableBytes, evictableBytes: 0 }, cause);
}

/** There until the signal aborts. */
async function temporaryFolder(signal: AbortSignal): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), "model-headers-"));
  const remove = () => {
    try {
      rmSync(folder, { recursive: true, force: true });
    } catch {
      // where a file that is still mapped cannot be removed, the system's own cleaning of such folders has to do it
    }
  };
  if (signal.aborted) remove();
  signal.throwIfAborted();
  signal.addEventListener("abort", remove, { once: true });
  return folder;
}

async function devicesOf(llama: Llama): Promise<readonly DeviceInfo[]> {
  if (llama.gpu === false) return [ram()];
  const [names, memory] = await Promise.all([llama.getGpuDeviceNames(), llama.getVramState()]);
  // The engine tells the sum over its GPUs only, and spreads a model's layers over all of them.
  const share = (bytes: number) => Math.floor(bytes / Math.max(1, names.length));
  const gpus = names.map((name, index): DeviceInfo => ({
    device: `gpu:${index}`,
    name,
    totalBytes: share(memory.total),
    freeBytes: share(memory.free),
    ...(memory.unifiedSize > 0 && { unified: true }),
  }));
  return [ram(), ...gpus];
}

/** As it is at this moment: callers claim memory right after. */
function ram(): DeviceInfo {
  return { device: "ram", name: "RAM", ...ramLimits() };
}

function own(model: ResolvedModel): GgufModel {
  if (model instanceof GgufModel) return model;
  throw new TypeError("This model was resolved by another backend");
}
