import type { MemoryReport, UnreleasedMemory } from "../../model.js";
import type { ModelTable } from "../../table/model-table.js";
import { availableOn, finiteOrNull, resolveBudget } from "./budget.js";
import { reservedOn } from "./claims.js";
import { evictableOn } from "./room.js";
import { tenantsOf } from "./tenants.js";

/** What is reserved, against the limits on the devices as last seen. */
export function memoryReport(table: ModelTable, now: number, graceMs: number): MemoryReport {
  const tenants = tenantsOf(table, now, graceMs);
  const devices = resolveBudget(table.budget(), table.devices()).map((pool) => ({
    device: pool.device,
    limitBytes: finiteOrNull(pool.limitBytes),
    reservedBytes: reservedOn(pool.device, tenants),
    measuredBytes: reservedOn(
      pool.device,
      tenants.filter((tenant) => tenant.measured),
    ),
    availableBytes: finiteOrNull(availableOn(pool, tenants)),
    evictableBytes: evictableOn(pool.device, tenants),
  }));
  return { devices, unreleased: unreleasedMemory(table) };
}

/** Memory whose model is not there any more: being given back, or stuck. */
export function unreleasedMemory(table: ModelTable): UnreleasedMemory[] {
  return [...table.reservations()]
    .filter(({ modelId, incarnation }) => {
      const row = table.get(modelId);
      return row?.incarnation !== incarnation || row.status === "error" || row.status === "registered";
    })
    .map(({ modelId, incarnation, placement }) => ({ modelId, incarnation, placement }));
}
