import type { Llama, LlamaModel } from "node-llama-cpp";
import type { CalibrationFile } from "./layout/calibration-file.js";
import type { SharedWeights } from "./shared-weights.js";

/** What a backend has for all its models. */
export interface EngineParts {
  readonly llama: Llama;
  readonly weights: SharedWeights<LlamaModel>;
  /** Where measured layouts are remembered; `undefined`: none is measured. */
  readonly memory: CalibrationFile | undefined;
}
