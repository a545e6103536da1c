import type { Backend, MemoryNeed } from "../backends/backend.js";
import { EstimateFailedError, InvalidOptionError } from "../errors.js";
import type { DeviceInfo, ModelId, ModelSource } from "../model.js";
import type { LoadSettings } from "../table/entry.js";
import { placementOf, placementProblem } from "./memory/placement.js";
import { profileOf } from "./profile.js";

/** Everything that is known before a load: what `plan()` tells and a load claims. */
export async function planLoad(input: {
  readonly backend: Backend;
  readonly id: ModelId;
  readonly source: ModelSource;
  readonly settings: LoadSettings;
  readonly signal: AbortSignal;
  readonly onEstimate?: () => void;
}) {
  const { backend, id, source, settings, signal } = input;
  const model = await backend.resolve(source, settings.engine, signal);
  const profile = profileOf(id, settings, model);
  const devices = await backend.devices();
  checkPlacement(settings, devices);
  input.onEstimate?.();
  const estimate = await backend.estimate(model, profile);
  checkEstimate(source, estimate);
  return { model, profile, devices, estimate, placement: placementOf(estimate, settings.engine, devices) };
}

function checkPlacement({ engine }: LoadSettings, devices: readonly DeviceInfo[]): void {
  const problem = placementProblem(engine, devices);
  if (problem) throw new InvalidOptionError(problem.option, problem.expected, engine[problem.option]);
}

/** No machine has more; a figure beyond it is a damaged file or a bug, and must never look like "fits". */
const ABSURD_BYTES = 2 ** 50;

function checkEstimate(source: string, estimate: MemoryNeed): void {
  for (const name of ["ramBytes", "gpuWeightsBytes", "gpuContextBytes", "mappedBytes"] as const) {
    const bytes = estimate[name];
    if (Number.isFinite(bytes) && bytes >= 0 && bytes < ABSURD_BYTES) continue;
    throw new EstimateFailedError(source, `${name} came out as ${bytes}`);
  }
}
