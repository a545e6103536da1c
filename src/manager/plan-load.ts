import type { Backend, Estimate, MemoryNeed, ModelProfile, ResolvedModel } from "../backends/backend.js";
import { EstimateFailedError, InvalidOptionError, LoadFailedError, isModelSupervisorError } from "../errors.js";
import type { LoadPhase, ModelSupervisorError } from "../errors.js";
import type { DeviceInfo, MemoryBudget, ModelId, ModelSource, Placement } from "../model.js";
import type { LoadSettings, SharedPart } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import { resolveBudget } from "./memory/budget.js";
import { claimOf, placementProblem } from "./memory/placement.js";
import { profileOf } from "./profile.js";

/** What is known of a load before it touches the device: what `plan()` tells and a load claims. */
export interface PlannedLoad {
  readonly model: ResolvedModel;
  readonly profile: ModelProfile;
  readonly devices: readonly DeviceInfo[];
  readonly estimate: Estimate;
  readonly placement: Placement;
  readonly shared?: SharedPart | undefined;
  /** `measuredCount` of the table before the devices were looked at. */
  readonly asOf: number;
}

interface LoadSubject {
  readonly backend: Backend;
  readonly table: ModelTable;
  /** For messages. */
  readonly id: ModelId;
  readonly source: ModelSource;
  readonly settings: LoadSettings;
  readonly maxThreads: number;
}

interface PlanInput extends LoadSubject {
  readonly signal: AbortSignal;
  readonly mayDownload: boolean;
  readonly onPhase?: (phase: LoadPhase) => void;
  readonly onDownload?: (fraction: number) => void;
}

/** Plans without a load to follow: downloads nothing, and what was fetched for the estimate alone is gone at the end. */
export async function peekAtLoad({
  signal,
  ...subject
}: LoadSubject & { readonly signal?: AbortSignal }): Promise<PlannedLoad> {
  const end = new AbortController();
  const either = signal === undefined ? end.signal : AbortSignal.any([signal, end.signal]);
  try {
    return await planLoad({ ...subject, signal: either, mayDownload: false });
  } finally {
    end.abort();
  }
}

/** Rejects with a typed error, or with the signal's reason. */
export async function planLoad(input: PlanInput): Promise<PlannedLoad> {
  const { backend, table, id, source, settings, signal, mayDownload, onDownload } = input;
  let phase: LoadPhase = "resolve";
  const enter = (next: LoadPhase) => {
    phase = next;
    input.onPhase?.(next);
  };
  try {
    enter("resolve");
    const model = await backend.resolve(source, settings.engine, signal, { mayDownload, onDownload });
    const wanted = profileOf(id, settings, model, input.maxThreads);
    const profile = withoutForbiddenGpus(wanted, table.budget(), table.devices());
    enter("estimate");
    const estimate = await backend.estimate(model, profile);
    checkNeed(source, estimate);
    // last, for what is free now is to be what is free when the claim is made
    const asOf = table.measuredCount();
    const devices = await backend.devices();
    checkPlacement(settings, devices);
    const { placement, shared } = claimOf(estimate, settings.engine, devices);
    return { model, profile, devices, asOf, estimate, placement, shared };
  } catch (error) {
    throw signal.aborted ? signal.reason : loadError(id, phase, error);
  }
}

/** As many layers as fit is none where the budget lets the GPUs hold nothing; the engine does not know the budget. */
function withoutForbiddenGpus(
  profile: ModelProfile,
  budget: MemoryBudget,
  devices: readonly DeviceInfo[],
): ModelProfile {
  if (profile.gpuLayers !== undefined && profile.gpuLayers !== "auto") return profile;
  const gpus = resolveBudget(budget, devices).filter(({ device }) => device.startsWith("gpu:"));
  const areForbidden = gpus.length > 0 && gpus.every(({ limitBytes }) => limitBytes === 0);
  return areForbidden ? { ...profile, gpuLayers: 0 } : profile;
}

/** The engine's own errors become `load_failed`; what is typed stays as it is. */
export function loadError(id: ModelId, phase: LoadPhase, error: unknown): ModelSupervisorError {
  return isModelSupervisorError(error) ? error : new LoadFailedError(id, phase, error);
}

function checkPlacement({ engine }: LoadSettings, devices: readonly DeviceInfo[]): void {
  const problem = placementProblem(engine, devices);
  if (problem) throw new InvalidOptionError(problem.option, problem.expected, engine[problem.option]);
}

/** No machine has more; a figure beyond it is a damaged file or a bug, and must never look like "fits". */
const ABSURD_BYTES = 2 ** 50;

/** The figures of an estimate, or of a live backing. */
export function checkNeed(source: ModelSource, need: MemoryNeed): void {
  for (const name of ["ramBytes", "gpuWeightsBytes", "gpuContextBytes", "mappedBytes"] as const) {
    const bytes = need[name];
    if (Number.isFinite(bytes) && bytes >= 0 && bytes < ABSURD_BYTES) continue;
    throw new EstimateFailedError(source, `${name} came out as ${bytes}`);
  }
  const { shared, ramBytes } = need;
  if (shared === undefined || (shared.ramBytes >= 0 && shared.ramBytes <= ramBytes)) return;
  throw new EstimateFailedError(source, `shared.ramBytes came out as ${shared.ramBytes}, of ${ramBytes} in RAM`);
}
