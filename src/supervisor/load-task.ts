import type { Clock } from "../api.js";
import type { Backend, Backing } from "../backends/backend.js";
import { DisposeFailedError, LoadFailedError, ModelSupervisorError } from "../errors.js";
import type { LoadPhase } from "../errors.js";
import { placementOf } from "../manager/memory/placement.js";
import { planLoad } from "../manager/plan-load.js";
import type { Life, LifecycleFact, ReserveRequest } from "../manager/protocol.js";
import type { LoadOrder } from "../manager/tasks.js";
import { LiveModel } from "../table/live-model.js";

export interface LoadContext {
  readonly backend: Backend;
  readonly maxThreads: number;
  readonly clock: Clock;
  /** Asks the manager for the memory; rejects with `insufficient_memory`, or `load_cancelled` if the row is gone. */
  readonly reserve: (request: Omit<ReserveRequest, "type" | "reply">) => Promise<void>;
}

/**
 * Finds, measures, claims, loads. Whatever it acquires is either handed to the manager in `load.done` or given back before
 * it says `memory.released`.
 */
export async function loadTask(
  order: LoadOrder,
  context: LoadContext,
  signal: AbortSignal,
): Promise<readonly LifecycleFact[]> {
  const { id, incarnation, settings } = order;
  const life = { id, incarnation };
  let phase: LoadPhase = "resolve";
  const enter = (next: LoadPhase) => {
    phase = next;
    order.onProgress?.(next, 0);
  };
  const released: LifecycleFact = { ...life, type: "memory.released" };
  try {
    enter("resolve");
    const { backend, maxThreads } = context;
    const plan = await planLoad({ backend, id, source: order.source, settings, signal, onEstimate: () => enter("estimate") });
    if (signal.aborted) return [released];
    await context.reserve({ ...life, ...plan });
    if (signal.aborted) return [released];

    enter("start");
    const { model, profile, estimate, devices } = plan;
    const backing = await backend.start(
      { modelId: id, incarnation, model, profile, gpuLayers: estimate.gpuLayers },
      { signal, maxThreads, onProgress: (fraction) => order.onProgress?.("start", fraction) },
    );
    // from here on the backing is ours to give back: because nobody wants it any more, or because it does not work
    let fault: unknown;
    try {
      if (!signal.aborted) {
        const held = backing.memory();
        const measured = { placement: placementOf(held, settings.engine, devices), mappedBytes: held.mappedBytes };
        return [{ ...life, type: "load.done", live: new LiveModel(backing), measured, at: context.clock.now() }];
      }
    } catch (error) {
      fault = error;
    }
    const given = await giveBack(backing, life);
    return fault === undefined ? given : [...given, { ...life, type: "load.failed", error: new LoadFailedError(id, phase, fault) }];
  } catch (error) {
    if (signal.aborted) return [released];
    const typed = error instanceof ModelSupervisorError ? error : new LoadFailedError(id, phase, error);
    return [released, { ...life, type: "load.failed", error: typed }];
  }
}

async function giveBack(backing: Backing, life: Life): Promise<readonly LifecycleFact[]> {
  try {
    await backing.dispose();
    return [{ ...life, type: "memory.released" }];
  } catch (error) {
    return [{ ...life, type: "dispose.failed", error: new DisposeFailedError(life.id, "its disposal after a cancelled load failed", error) }];
  }
}
