import type { Backend } from "../backends/backend.js";
import { loadError, planLoad } from "../manager/plan-load.js";
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
  const end = new AbortController();
  const forward = () => end.abort(signal.reason);
  signal.addEventListener("abort", forward, { once: true });
  try {
    const asked = { id, source, settings, signal: end.signal, mayDownload: false };
    const { model, profile } = await planLoad({ ...context, ...asked, budget: context.table.budget() });
    return [{ type: "check.done", id, incarnation, model, profile }];
  } catch (error) {
    return signal.aborted ? [] : [{ type: "check.failed", id, incarnation, error: loadError(id, "resolve", error) }];
  } finally {
    signal.removeEventListener("abort", forward);
    end.abort(); // what was fetched for the estimate alone may go
  }
}
