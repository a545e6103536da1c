import type { DeviceMemory, MemoryReport, UnreleasedMemory } from "../../model.js";
import type { ModelTable } from "../../table/model-table.js";
import { availableOn, finiteOrNull, resolveBudget, type Pool } from "./budget.js";
import { reservedOn } from "./claims.js";
import { evictableOn, type Tenant } from "./room.js";
import { tenantsOf } from "./tenants.js";

/** What is reserved, against the limits on the devices as last seen. */
export function memoryReport(table: ModelTable, now: number, graceMs: number): MemoryReport {
  const pools = resolveBudget(table.budget(), table.devices());
  return { devices: reportPools(pools, tenantsOf(table, now, graceMs)), unreleased: unreleasedMemory(table) };
}

/** One row per pool. */
export function reportPools(pools: readonly Pool[], tenants: readonly Tenant[]): DeviceMemory[] {
  const measured = tenants.filter((tenant) => tenant.measured);
  return pools.map((pool) => ({
    device: pool.device,
    limitBytes: finiteOrNull(pool.limitBytes),
    reservedBytes: reservedOn(pool.device, tenants),
    measuredBytes: reservedOn(pool.device, measured),
    availableBytes: finiteOrNull(availableOn(pool, tenants)),
    evictableBytes: evictableOn(pool.device, tenants, ["idle"]),
  }));
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
