import type { MemoryBudget, MemoryReport, UnreleasedMemory } from "../../model.js";
import type { ModelTable } from "../../table/model-table.js";
import { reportPools, resolveBudget } from "./budget.js";

/** What is reserved, against the limits on the devices as last seen. */
export function memoryReport(table: ModelTable, budget: MemoryBudget): MemoryReport {
  return {
    devices: reportPools(resolveBudget(budget, table.devices()), [...table.reservations()]),
    unreleased: unreleasedMemory(table),
  };
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
