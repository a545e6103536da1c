import type { ModelProfile } from "../../backends/backend.js";
import type { DeviceInfo, LoadPlan, MemoryBudget, Placement } from "../../model.js";
import { checkFit, finiteOrNull, resolveBudget } from "./budget.js";
import type { Claim } from "./budget.js";

/** The answer of `plan()`: would this load be let in now? */
export function planOf(
  { profile, placement, devices }: { profile: ModelProfile; placement: Placement; devices: readonly DeviceInfo[] },
  budget: MemoryBudget,
  claims: readonly Claim[],
): LoadPlan {
  const fit = checkFit(placement, resolveBudget(budget, devices), claims);
  return {
    outcome: fit.fits ? "fits" : "refuse",
    mode: profile.mode,
    capabilities: profile.capabilities,
    placement,
    ...(!fit.fits && { device: fit.device }),
    requiredBytes: fit.requiredBytes,
    availableBytes: finiteOrNull(fit.availableBytes),
  };
}
