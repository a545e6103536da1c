/** Who holds memory, and what may become of it, read from the table. */
import type { Entry, Reservation } from "../../table/entry.js";
import type { ModelTable } from "../../table/model-table.js";
import type { Fate, Tenant } from "./room.js";

/**
 * `graceMs`: for so long a model that was just loaded is kept for its first request. `asOf`: what was measured after that
 * may not show in what is seen as free, so that it counts as not allocated.
 */
export function tenantsOf(table: ModelTable, now: number, graceMs: number, asOf = Infinity): Tenant[] {
  return [...table.reservations()].map((reservation) => {
    const { modelId, incarnation, placement, shared, mappedBytes, measured, number } = reservation;
    const row = table.get(modelId);
    const current = row?.incarnation === incarnation ? row : undefined;
    return {
      modelId,
      incarnation,
      placement,
      shared,
      mappedBytes,
      measured: measured && number <= asOf,
      fate: fateOf(reservation, current, now, graceMs),
      isReady: current?.status === "ready",
      isInUse: (reservation.live?.block.leases ?? 0) > 0,
      evictionPriority: current?.settings.residency.evictionPriority ?? 0,
      lastUsedAt: current?.live?.block.lastUsedAt ?? current?.loadedAt ?? 0,
    };
  });
}

function fateOf({ stuck }: Reservation, row: Entry | undefined, now: number, graceMs: number): Fate {
  if (stuck || row?.disposal === "stuck") return "stays";
  if (row === undefined || row.status === "unloading" || row.status === "error" || row.status === "registered")
    return "leaves";
  if (!row.settings.residency.evictable) return "stays";
  if (row.status === "loading" || row.live === undefined) return "busy";
  const { leases, lastUsedAt } = row.live.block;
  const isNew = lastUsedAt === undefined && now - (row.loadedAt ?? now) < graceMs;
  return leases > 0 || isNew ? "busy" : "idle";
}
