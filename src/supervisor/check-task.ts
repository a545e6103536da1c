import type { Backend } from "../backends/backend.js";
import { loadError, peekAtLoad } from "../manager/plan-load.js";
import type { LifecycleFact } from "../manager/protocol.js";
import type { LoadOrder } from "../manager/tasks.js";
import type { ModelTable } from "../table/model-table.js";

export interface CheckContext {
  readonly backend: Backend;
  readonly maxThreads: number;
  readonly table: ModelTable;
}

/** Looks at the file of a declared model and at what it will need, and downloads and claims nothing. */
export async function checkTask(
  { id, incarnation, source, settings }: Omit<LoadOrder, "onProgress">,
  context: CheckContext,
  signal: AbortSignal,
): Promise<readonly LifecycleFact[]> {
  try {
    const { model, profile } = await peekAtLoad({ ...context, id, source, settings, signal });
    return [{ type: "check.done", id, incarnation, model, profile }];
  } catch (error) {
    return signal.aborted ? [] : [{ type: "check.failed", id, incarnation, error: loadError(id, "resolve", error) }];
  }
}
