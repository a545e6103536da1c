import type { ModelProfile } from "../../backends/backend.js";
import type { LoadPlan } from "../../model.js";
import { checkFit, finiteOrNull } from "./budget.js";
import { planRoom, type RoomInput } from "./room.js";

/** The answer of `plan()`: would this load be let in now? */
export function planOf({ mode, capabilities }: ModelProfile, input: RoomInput, mayEvict: boolean): LoadPlan {
  const { placement, shared, pools, tenants } = input;
  const fit = checkFit({ placement, shared }, pools, tenants);
  const plan = planRoom(input, mayEvict);
  const victims = !fit.fits && plan.outcome === "evict" ? plan.victims : [];
  return {
    outcome: fit.fits ? "fits" : victims.length > 0 ? "evict" : "refuse",
    mode,
    capabilities,
    placement,
    ...(!fit.fits && { device: fit.device }),
    evict: victims.map(({ modelId }) => modelId),
    requiredBytes: fit.requiredBytes,
    availableBytes: finiteOrNull(fit.availableBytes),
  };
}
