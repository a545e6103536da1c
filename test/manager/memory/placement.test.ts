import { describe, expect, it } from "vitest";
import type { MemoryNeed } from "../../../src/index.js";
import { bytesOn } from "../../../src/manager/memory/claims.js";
import { placementOf, placementProblem } from "../../../src/manager/memory/placement.js";
import type { PlacementOptions } from "../../../src/manager/memory/placement.js";
import type { DeviceInfo, Placement } from "../../../src/model.js";

/** RAM and so many GPUs with memory of their own. */
function machine(gpus: number): DeviceInfo[] {
  return [
    { device: "ram", name: "RAM", totalBytes: 100_000, freeBytes: 100_000 },
    ...Array.from({ length: gpus }, (_, index) => gpu(index)),
  ];
}

function gpu(index: number, unified?: true): DeviceInfo {
  return { device: `gpu:${index}`, name: `GPU ${index}`, totalBytes: 50_000, freeBytes: 50_000, unified };
}

function need(bytes: Partial<MemoryNeed>): MemoryNeed {
  return { ramBytes: 0, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes: 0, ...bytes };
}

interface Case {
  readonly it: string;
  readonly need: Partial<MemoryNeed>;
  readonly options?: PlacementOptions;
  readonly devices: readonly DeviceInfo[];
  readonly placement: Placement;
}

describe("placementOf", () => {
  const CASES: readonly Case[] = [
    {
      it: "puts everything that was offloaded on the only GPU",
      need: { gpuWeightsBytes: 6_000 },
      devices: machine(1),
      placement: { ram: 0, "gpu:0": 6_000 },
    },
    {
      it: "puts everything on GPU 0 under split mode none when no main GPU is named",
      need: { gpuWeightsBytes: 6_000 },
      options: { splitMode: "none" },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 6_000 },
    },
    {
      it: "puts everything on the main GPU under split mode none",
      need: { gpuWeightsBytes: 6_000 },
      options: { splitMode: "none", mainGpu: 5 },
      devices: machine(8),
      placement: { ram: 0, "gpu:5": 6_000 },
    },
    {
      it: "does not look at the tensor split under split mode none",
      need: { gpuWeightsBytes: 6_000 },
      options: { splitMode: "none", mainGpu: 1, tensorSplit: [1, 0] },
      devices: machine(2),
      placement: { ram: 0, "gpu:1": 6_000 },
    },
    {
      it: "keeps a model without offloaded layers in RAM, whatever GPUs there are",
      need: { ramBytes: 6_000 },
      devices: machine(4),
      placement: { ram: 6_000 },
    },
    {
      it: "falls back to RAM where there is no GPU",
      need: { ramBytes: 1_000, gpuWeightsBytes: 6_000, gpuContextBytes: 500 },
      devices: machine(0),
      placement: { ram: 7_500 },
    },
    {
      it: "falls back to RAM without a GPU even if the KV cache is kept there anyway",
      need: { gpuWeightsBytes: 6_000, gpuContextBytes: 500 },
      options: { offloadKqv: false },
      devices: machine(0),
      placement: { ram: 6_500 },
    },
    {
      it: "charges a partial offload as what it is: RAM for some layers, the GPU for the others",
      need: { ramBytes: 4_000, gpuWeightsBytes: 2_000, gpuContextBytes: 300 },
      devices: machine(1),
      placement: { ram: 4_000, "gpu:0": 2_300 },
    },
    {
      it: "splits a partial offload by tensor split, and leaves its RAM part alone",
      need: { ramBytes: 1_000, gpuWeightsBytes: 8_000 },
      options: { splitMode: "layer", tensorSplit: [1, 3] },
      devices: machine(2),
      placement: { ram: 1_000, "gpu:0": 2_000, "gpu:1": 6_000 },
    },
    {
      it: "spreads over the GPUs by weight",
      need: { gpuWeightsBytes: 8_000 },
      options: { splitMode: "layer", tensorSplit: [1, 1, 1, 1] },
      devices: machine(4),
      placement: { ram: 0, "gpu:0": 2_000, "gpu:1": 2_000, "gpu:2": 2_000, "gpu:3": 2_000 },
    },
    {
      it: "spreads under split mode row as under layer",
      need: { gpuWeightsBytes: 8_000 },
      options: { splitMode: "row", tensorSplit: [1, 3] },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 2_000, "gpu:1": 6_000 },
    },
    {
      it: "leaves out a GPU of weight zero",
      need: { gpuWeightsBytes: 4_000 },
      options: { splitMode: "layer", tensorSplit: [0, 0, 1, 1] },
      devices: machine(4),
      placement: { ram: 0, "gpu:2": 2_000, "gpu:3": 2_000 },
    },
    {
      it: "leaves out a GPU beyond the end of the tensor split",
      need: { gpuWeightsBytes: 4_000 },
      options: { tensorSplit: [1] },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 4_000 },
    },
    {
      it: "splits equally over all GPUs without a tensor split",
      need: { gpuWeightsBytes: 8_000 },
      options: { splitMode: "layer" },
      devices: machine(8),
      placement: { ram: 0, ...Object.fromEntries(Array.from({ length: 8 }, (_, index) => [`gpu:${index}`, 1_000])) },
    },
    {
      it: "takes an empty tensor split for equal shares",
      need: { gpuWeightsBytes: 4_000 },
      options: { tensorSplit: [] },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 2_000, "gpu:1": 2_000 },
    },
    {
      it: "splits by layer when no split mode is named",
      need: { gpuWeightsBytes: 4_000 },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 2_000, "gpu:1": 2_000 },
    },
    {
      it: "takes weights for proportions, not for shares of one",
      need: { gpuWeightsBytes: 8_000 },
      options: { tensorSplit: [0.25, 0.75] },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 2_000, "gpu:1": 6_000 },
    },
    {
      it: "gives what rounding leaves over to the last GPU used",
      need: { gpuWeightsBytes: 10_000 },
      options: { tensorSplit: [1, 1, 1, 0] },
      devices: machine(4),
      placement: { ram: 0, "gpu:0": 3_333, "gpu:1": 3_333, "gpu:2": 3_334 },
    },
    {
      it: "puts the KV cache beside the layers that were offloaded",
      need: { gpuWeightsBytes: 6_000, gpuContextBytes: 500 },
      devices: machine(1),
      placement: { ram: 0, "gpu:0": 6_500 },
    },
    {
      it: "keeps the KV cache in RAM when its offload is off",
      need: { ramBytes: 100, gpuWeightsBytes: 6_000, gpuContextBytes: 500 },
      options: { offloadKqv: false },
      devices: machine(1),
      placement: { ram: 600, "gpu:0": 6_000 },
    },
    {
      it: "splits weights and KV cache together",
      need: { gpuWeightsBytes: 6_000, gpuContextBytes: 2_000 },
      options: { tensorSplit: [1, 3] },
      devices: machine(2),
      placement: { ram: 0, "gpu:0": 2_000, "gpu:1": 6_000 },
    },
    {
      it: "counts a GPU that shares the RAM in ram",
      need: { ramBytes: 1_000, gpuWeightsBytes: 6_000, gpuContextBytes: 500 },
      devices: [...machine(0), gpu(0, true)],
      placement: { ram: 7_500 },
    },
    {
      it: "puts nothing on a GPU that shares the RAM when there is one of its own memory",
      need: { gpuWeightsBytes: 6_000 },
      devices: [...machine(0), gpu(0, true), gpu(1)],
      placement: { ram: 0, "gpu:1": 6_000 },
    },
    {
      it: "does not charge mapped bytes twice: they are a part of the RAM bytes",
      need: { ramBytes: 6_000, mappedBytes: 5_000 },
      devices: machine(1),
      placement: { ram: 6_000 },
    },
    {
      it: "places a model that needs nothing",
      need: {},
      devices: machine(2),
      placement: { ram: 0 },
    },
  ];

  it.each(CASES.map((row) => [row.it, row] as const))("%s", (_, { need: bytes, options = {}, devices, placement }) => {
    const placed = placementOf(need(bytes), options, devices);

    expect(placed).toEqual(placement);
  });

  it.each<[readonly number[]]>([
    [[1, 1, 1]],
    [[3, 1, 7]],
    [[0.1, 0.2, 0.3]],
    [[1, 0, 0]],
    [[1e9, 1, 1e-9]],
    [[0, 1, 1e-9]],
  ])("charges every byte once with the tensor split %j", (tensorSplit) => {
    const bytes = need({ ramBytes: 7, gpuWeightsBytes: 1_000_003, gpuContextBytes: 11 });

    const placed = placementOf(bytes, { tensorSplit }, machine(3));

    expect(bytesOn("total", placed)).toBe(7 + 1_000_003 + 11);
    expect(Object.values(placed).every((each) => Number.isInteger(each) && (each ?? -1) >= 0)).toBe(true);
  });
});

describe("placementProblem", () => {
  interface Case {
    readonly it: string;
    readonly options: PlacementOptions;
    readonly gpus: number;
    readonly option: string | undefined;
  }

  const CASES: readonly Case[] = [
    { it: "refuses a main GPU that does not exist", options: { mainGpu: 2 }, gpus: 2, option: "mainGpu" },
    { it: "takes the last GPU for the main one", options: { mainGpu: 1 }, gpus: 2, option: undefined },
    { it: "refuses more weights than GPUs", options: { tensorSplit: [0, 0, 1] }, gpus: 2, option: "tensorSplit" },
    { it: "takes as many weights as GPUs", options: { tensorSplit: [0, 1] }, gpus: 2, option: undefined },
    { it: "takes fewer weights than GPUs", options: { tensorSplit: [1] }, gpus: 2, option: undefined },
    {
      it: "has nothing to say where there is no GPU",
      options: { mainGpu: 3, tensorSplit: [1, 1] },
      gpus: 0,
      option: undefined,
    },
  ];

  it.each(CASES.map((row) => [row.it, row] as const))("%s", (_, { options, gpus, option }) => {
    const problem = placementProblem(options, machine(gpus));

    expect(problem?.option).toBe(option);
  });

  it("does not count a GPU that shares the RAM", () => {
    const devices = [...machine(1), gpu(1, true)];

    const problem = placementProblem({ mainGpu: 1 }, devices);

    expect(problem).toEqual({ option: "mainGpu", expected: "one of the GPUs 0" });
  });
});
