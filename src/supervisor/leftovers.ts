import type { Clock } from "../api.js";
import type { ModelSupervisorError } from "../errors.js";
import type { Life, LifecycleFact } from "../manager/protocol.js";
import type { ModelTable, TableWriter } from "../table/model-table.js";
import type { Backend } from "../backends/backend.js";
import { atOnce } from "../manager/decision.js";
import { Drain } from "./drain.js";
import { unloadTask } from "./unload-task.js";

/** After the tree has failed for good: ends what still runs and gives the memory back, as far as that can be done. */
export async function disposeLeftovers(
  table: ModelTable,
  writer: TableWriter,
  clock: Clock,
  backend: Backend,
  error: ModelSupervisorError,
): Promise<void> {
  for (const { id } of [...table.entries()]) writer.delete(id);
  const { signal } = new AbortController();
  await Promise.all(
    [...table.reservations()].map(async ({ modelId: id, incarnation, live, stuck }) => {
      // an aborted load gives back what it took by itself; what is stuck may never come back
      if (live === undefined || stuck) return;
      live.abortRequests(error);
      const order = { id, incarnation, live, ...atOnce(writer.nextOrder()) };
      await new Promise<void>((resolve) => {
        const settle = (facts: readonly LifecycleFact[]) => {
          if (facts.some((fact) => fact.type === "memory.released")) writer.unreserve(id, incarnation);
          resolve();
        };
        const context = {
          backend,
          table,
          drain: new Drain(order, clock),
          clock,
          report: (fact: LifecycleFact & Life) => settle([fact]),
        };
        void unloadTask(order, context, signal).then(settle);
      });
    }),
  );
}
