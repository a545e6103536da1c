import type { Clock, LoadProgress } from "../api.js";
import type { Backend, Backing, QueueLimit, StepListener } from "../backends/backend.js";
import { DisposeFailedError, isModelSupervisorError } from "../errors.js";
import { claimOf } from "../manager/memory/placement.js";
import { checkNeed, loadError, planLoad } from "../manager/plan-load.js";
import type { PlannedLoad } from "../manager/plan-load.js";
import type { Life, LifecycleFact, ReserveRequest } from "../manager/protocol.js";
import type { LoadOrder } from "../manager/tasks.js";
import type { MemoryBudget } from "../model.js";
import { LiveModel } from "../table/live-model.js";
import type { ModelTable } from "../table/model-table.js";

type Progress = (phase: LoadProgress["phase"], fraction: number) => void;

export interface LoadContext {
  readonly backend: Backend;
  readonly budget: MemoryBudget;
  readonly maxThreads: number;
  readonly queueLimit: QueueLimit;
  readonly steps: StepListener;
  readonly clock: Clock;
  readonly table: ModelTable;
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
  const { id, incarnation, source, settings } = order;
  // an engine may go on to tell how far it is when nobody wants the load any more, or when it is over
  let isOver = false;
  const onProgress: Progress = (phase, fraction) => {
    if (!isOver && !signal.aborted) order.onProgress?.(phase, fraction);
  };
  const life = { id, incarnation };
  const released: LifecycleFact = { ...life, type: "memory.released" };
  const failed = (error: unknown): LifecycleFact => ({
    ...life,
    type: "load.failed",
    error: loadError(id, "start", error),
  });
  let backing: Backing;
  let plan: PlannedLoad;
  try {
    const onPhase = (phase: LoadProgress["phase"]) => onProgress(phase, 0);
    const onDownload = (fraction: number) => onProgress("download", fraction);
    plan = await planLoad({ ...context, id, source, settings, signal, mayDownload: true, onPhase, onDownload });
    signal.throwIfAborted();
    await context.reserve({ ...life, ...plan });
    signal.throwIfAborted();
    backing = await start(order, plan, context, onProgress, signal);
    isOver = true;
  } catch (error) {
    isOver = true;
    // an engine that could not give back what it took says so by this error
    const held = isModelSupervisorError(error, "dispose_failed")
      ? ({ ...life, type: "dispose.failed", error } as const)
      : released;
    return signal.aborted ? [held] : [held, failed(error)];
  }

  // from here on the backing is ours to give back: when nobody wants it any more, and when it does not work
  if (signal.aborted) return giveBack(backing, life);
  try {
    const held = backing.memory();
    checkNeed(source, held);
    const measured = claimOf(held, settings.engine, plan.devices);
    const devices = await context.backend.devices();
    return [{ ...life, type: "load.done", live: new LiveModel(backing), measured, at: context.clock.now(), devices }];
  } catch (error) {
    return [...(await giveBack(backing, life)), failed(error)];
  }
}

function start(
  { id, incarnation, onProgress: isHeard }: LoadOrder,
  { model, profile, estimate }: PlannedLoad,
  { backend, maxThreads, queueLimit, steps }: LoadContext,
  onProgress: Progress,
  signal: AbortSignal,
): Promise<Backing> {
  onProgress("start", 0);
  return backend.start(
    { modelId: id, incarnation, model, profile, gpuLayers: estimate.gpuLayers },
    {
      signal,
      maxThreads,
      queueLimit,
      steps,
      onProgress: isHeard ? (fraction) => onProgress("start", fraction) : undefined,
    },
  );
}

async function giveBack(backing: Backing, life: Life): Promise<readonly LifecycleFact[]> {
  try {
    await backing.dispose();
    return [{ ...life, type: "memory.released" }];
  } catch (error) {
    const detail = "its disposal after a load that nobody wanted failed";
    return [{ ...life, type: "dispose.failed", error: new DisposeFailedError(life.id, detail, error) }];
  }
}
