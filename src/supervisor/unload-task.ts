import type { Clock } from "../api.js";
import type { Backend } from "../backends/backend.js";
import { DisposeFailedError, RequestAbortedError, UnloadTimeoutError } from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import type { LifecycleFact, SeenDevices } from "../manager/protocol.js";
import type { UnloadOrder } from "../manager/tasks.js";
import type { LiveModel } from "../table/live-model.js";
import type { ModelTable } from "../table/model-table.js";
import type { Drain } from "./drain.js";

/** How long an engine may take to fall quiet and give a model back before the model is reported as stuck. */
export const DISPOSE_DEADLINE_MS = 30_000;

export interface UnloadContext {
  readonly drain: Drain;
  readonly clock: Clock;
  readonly backend: Backend;
  readonly table: Pick<ModelTable, "measuredCount">;
  /** For a fact that comes before the end. */
  readonly report: (fact: LifecycleFact) => void;
}

/**
 * Drains a model and disposes it. Never disposes under a request: one that ignores its abort makes the model stuck
 * (`dispose.failed`, its bytes stay reserved), and if it does end some day, the disposal goes on from there, even if the
 * tree has ended meanwhile. When the manager is restarted, its successor orders the same again; a second disposal joins the
 * first.
 */
export async function unloadTask(
  { id, incarnation, order, live, timeoutMs }: UnloadOrder,
  { drain, clock, backend, table, report }: UnloadContext,
  signal: AbortSignal,
): Promise<readonly LifecycleFact[]> {
  const life = { id, incarnation };
  const end = await drain.untilDeadline(signal);
  if (end === "stopped") return [];
  if (end === "expired") {
    if (!drain.forced) {
      const error = new UnloadTimeoutError(id, live.block.leases, timeoutMs);
      return [{ ...life, type: "unload.expired", order, error }];
    }
    live.abortRequests(new RequestAbortedError(id, drain.reason));
  }

  const fail = (error: ModelSupervisorError) => report({ ...life, type: "dispose.failed", error });
  const deadline = clock.setTimeout(() => fail(stuck(id, live)), DISPOSE_DEADLINE_MS);
  try {
    await drain.untilUnused();
    await live.backing.dispose();
  } catch (error) {
    return [{ ...life, type: "dispose.failed", error: new DisposeFailedError(id, "its disposal failed", error) }];
  } finally {
    clock.clearTimeout(deadline);
  }
  const asOf = table.measuredCount();
  const seen = await devicesNow(backend, asOf);
  return [{ ...life, type: "memory.released", ...(seen && { seen }) }];
}

/** What is free after it; where that cannot be told just now, what was seen last stands until the next load looks again. */
async function devicesNow(backend: Backend, asOf: number): Promise<SeenDevices | undefined> {
  try {
    return { devices: await backend.devices(), asOf };
  } catch {
    return undefined;
  }
}

function stuck(id: string, live: LiveModel): DisposeFailedError {
  const { leases } = live.block;
  const seconds = DISPOSE_DEADLINE_MS / 1000;
  return new DisposeFailedError(
    id,
    leases > 0
      ? `${leases} user(s) did not let go within ${seconds} s: requests that ignore their abort, or leases whose native object was taken`
      : `its disposal did not end within ${seconds} s`,
  );
}
