/** Which device holds which bytes of a model. Pure. */
import type { EngineOptions, MemoryNeed } from "../../backends/backend.js";
import type { DeviceInfo, Placement } from "../../model.js";
import { gpuIndex, separateGpus } from "./budget.js";
import type { Claim } from "./claims.js";
import { addPlacements } from "./claims.js";

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

  const shares = split(onGpu, gpuWeights(options, gpus.map(gpuIndex)));
  return {
    ram: inRam,
    ...Object.fromEntries(
      gpus.map((gpu, index) => [gpu.device, shares[index] ?? 0]).filter(([, bytes]) => bytes !== 0),
    ),
  };
}

/**
 * What a need claims. What may be shared is placed apart from the rest, so that the two add up to the byte: where the same
 * weights are there already, exactly the rest is needed.
 */
export function claimOf(
  need: MemoryNeed,
  options: PlacementOptions,
  devices: readonly DeviceInfo[],
): Pick<Claim, "placement" | "mappedBytes" | "shared"> {
  const { mappedBytes, shared } = need;
  if (shared === undefined) return { placement: placementOf(need, options, devices), mappedBytes, shared };
  const { key, ramBytes } = shared;
  const own = placementOf({ ...need, ramBytes: need.ramBytes - ramBytes, gpuWeightsBytes: 0 }, options, devices);
  const placement = placementOf({ ...need, ramBytes, gpuContextBytes: 0 }, options, devices);
  return { placement: addPlacements(own, placement), mappedBytes, shared: { key, placement } };
}

/** What is wrong with these options on a machine with so many GPUs, if anything; for the refusal at load. */
export function placementProblem(
  options: PlacementOptions,
  devices: readonly DeviceInfo[],
): { option: keyof PlacementOptions; expected: string } | undefined {
  const indexes = separateGpus(devices).map(gpuIndex);
  if (indexes.length === 0) return undefined; // the options say how to use GPUs; without one there is nothing to say
  const { mainGpu, tensorSplit = [] } = options;
  const known = `one of the GPUs ${indexes.join(", ")}`;
  if (mainGpu !== undefined && !indexes.includes(mainGpu)) return { option: "mainGpu", expected: known };
  const beyond = tensorSplit.some((weight, index) => weight > 0 && !indexes.includes(index));
  return beyond ? { option: "tensorSplit", expected: `weights above 0 only for ${known}` } : undefined;
}

/** One weight per GPU. A GPU beyond the end of `tensorSplit` gets nothing; an empty one means equal shares. */
function gpuWeights({ splitMode, tensorSplit, mainGpu }: PlacementOptions, indexes: readonly number[]): number[] {
  if (splitMode === "none") return indexes.map((index) => (index === (mainGpu ?? indexes[0]) ? 1 : 0));
  if (tensorSplit === undefined || tensorSplit.length === 0) return indexes.map(() => 1);
  return indexes.map((index) => tensorSplit[index] ?? 0);
}

/** Whole bytes by weight; rounding goes to the last device used, so that the sum is exact. */
function split(bytes: number, weights: readonly number[]): number[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const shares = weights.map((weight) => Math.floor((bytes * weight) / total));
  const last = weights.findLastIndex((weight) => weight > 0);
  return shares.map((share, index) =>
    index === last ? share + bytes - shares.reduce((sum, each) => sum + each, 0) : share,
  );
}
