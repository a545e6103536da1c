import type { ModelProfile } from "../../backends/backend.js";
import type { DeviceInfo, LoadPlan, MemoryBudget } from "../../model.js";
import { checkFit, finiteOrNull, resolveBudget } from "./budget.js";
import type { Claim } from "./claims.js";

interface Planned extends Pick<Claim, "placement" | "shared"> {
  readonly profile: ModelProfile;
  readonly devices: readonly DeviceInfo[];
}

/** The answer of `plan()`: would this load be let in now? */
export function planOf(
  { profile, placement, shared, devices }: Planned,
  budget: MemoryBudget,
  claims: readonly Claim[],
): LoadPlan {
  const fit = checkFit({ placement, shared }, resolveBudget(budget, devices), claims);
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
