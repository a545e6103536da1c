import type { Backend, Estimate, MemoryNeed, ModelProfile, ResolvedModel } from "../backends/backend.js";
import { EstimateFailedError, InvalidOptionError, LoadFailedError, ModelSupervisorError } from "../errors.js";
import type { LoadPhase } from "../errors.js";
import type { DeviceInfo, ModelId, ModelSource, Placement } from "../model.js";
import type { LoadSettings } from "../table/entry.js";
import { placementOf, placementProblem } from "./memory/placement.js";
import { profileOf } from "./profile.js";

/** What is known of a load before it touches the device: what `plan()` tells and a load claims. */
export interface PlannedLoad {
  readonly model: ResolvedModel;
  readonly profile: ModelProfile;
  readonly devices: readonly DeviceInfo[];
  readonly estimate: Estimate;
  readonly placement: Placement;
}

/** Rejects with a typed error, or with the signal's reason. */
export async function planLoad(input: {
  readonly backend: Backend;
  /** For messages. */
  readonly id: ModelId;
  readonly source: ModelSource;
  readonly settings: LoadSettings;
  readonly signal: AbortSignal;
  readonly onPhase?: (phase: LoadPhase) => void;
}): Promise<PlannedLoad> {
  const { backend, id, source, settings, signal } = input;
  let phase: LoadPhase = "resolve";
  const enter = (next: LoadPhase) => {
    phase = next;
    input.onPhase?.(next);
  };
  try {
    enter("resolve");
    const model = await backend.resolve(source, settings.engine, signal);
    const profile = profileOf(id, settings, model);
    enter("estimate");
    const estimate = await backend.estimate(model, profile);
    checkEstimate(source, estimate);
    // last, for what is free now is to be what is free when the claim is made
    const devices = await backend.devices();
    checkPlacement(settings, devices);
    return { model, profile, devices, estimate, placement: placementOf(estimate, settings.engine, devices) };
  } catch (error) {
    throw signal.aborted ? signal.reason : loadError(id, phase, error);
  }
}

/** The engine's own errors become `load_failed`; what is typed stays as it is. */
export function loadError(id: ModelId, phase: LoadPhase, error: unknown): ModelSupervisorError {
  return error instanceof ModelSupervisorError ? error : new LoadFailedError(id, phase, error);
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
