/** Which device holds which bytes of a model. Pure. */
import type { EngineOptions, MemoryNeed } from "../../backends/backend.js";
import type { DeviceInfo, Placement } from "../../model.js";
import { separateGpus } from "./budget.js";

export type PlacementOptions = Pick<EngineOptions, "splitMode" | "tensorSplit" | "mainGpu" | "offloadKqv">;

/**
 * Spreads what a model needs over the devices. Without a GPU of its own memory everything is RAM. `splitMode` `"none"`
 * puts all on `mainGpu`; otherwise the bytes are split by `tensorSplit`. A partial offload is charged as what it is:
 * the need already tells RAM and GPU bytes apart.
 */
export function placementOf(need: MemoryNeed, options: PlacementOptions, devices: readonly DeviceInfo[]): Placement {
  const gpus = separateGpus(devices);
  const onGpu = need.gpuWeightsBytes + (options.offloadKqv === false ? 0 : need.gpuContextBytes);
  const inRam = need.ramBytes + need.gpuWeightsBytes + need.gpuContextBytes - onGpu;
  if (gpus.length === 0) return { ram: inRam + onGpu };

  const shares = split(onGpu, gpuWeights(options, gpus.length));
  return {
    ram: inRam,
    ...Object.fromEntries(gpus.map((gpu, index) => [gpu.device, shares[index] ?? 0]).filter(([, bytes]) => bytes !== 0)),
  };
}

/** What is wrong with these options on a machine with so many GPUs, if anything; for the refusal at load. */
export function placementProblem(
  options: PlacementOptions,
  devices: readonly DeviceInfo[],
): { option: keyof PlacementOptions; expected: string } | undefined {
  const count = separateGpus(devices).length;
  if (count === 0) return undefined; // the options say how to use GPUs; without one there is nothing to say
  if (options.mainGpu !== undefined && options.mainGpu >= count) {
    return { option: "mainGpu", expected: `a GPU index below ${count}` };
  }
  if ((options.tensorSplit?.length ?? 0) > count) {
    return { option: "tensorSplit", expected: `at most ${count} weights, one for each GPU` };
  }
  return undefined;
}

/** One weight per GPU. A GPU beyond the end of `tensorSplit` gets nothing; an empty one means equal shares. */
function gpuWeights(options: PlacementOptions, count: number): number[] {
  const { splitMode, tensorSplit, mainGpu = 0 } = options;
  if (splitMode === "none") return Array.from({ length: count }, (_, index) => (index === mainGpu ? 1 : 0));
  if (tensorSplit === undefined || tensorSplit.length === 0) return Array.from({ length: count }, () => 1);
  return Array.from({ length: count }, (_, index) => tensorSplit[index] ?? 0);
}

/** Whole bytes by weight; rounding goes to the last device used, so that the sum is exact. */
function split(bytes: number, weights: readonly number[]): number[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const shares = weights.map((weight) => Math.floor((bytes * weight) / total));
  const last = weights.findLastIndex((weight) => weight > 0);
  return shares.map((share, index) => (index === last ? share + bytes - shares.reduce((sum, each) => sum + each, 0) : share));
}
