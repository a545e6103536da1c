import type { Clock, LoadProgress } from "../api.js";
import type { Backend, Backing, QueueLimit, StepListener } from "../backends/backend.js";
import { DisposeFailedError, isModelSupervisorError } from "../errors.js";
import type { LoadPhase } from "../errors.js";
import { claimOf } from "../manager/memory/placement.js";
import { checkNeed, loadError, planLoad } from "../manager/plan-load.js";
import type { PlannedLoad } from "../manager/plan-load.js";
import type { Life, LifecycleFact, MoreRoomRequest, ReserveRequest } from "../manager/protocol.js";
import type { LoadOrder } from "../manager/tasks.js";
import { LiveModel } from "../table/live-model.js";
import type { ModelTable } from "../table/model-table.js";
import { warmUp } from "./warm-up.js";

type Progress = (phase: LoadProgress["phase"], fraction: number) => void;

export interface LoadContext {
  readonly backend: Backend;
  readonly maxThreads: number;
  readonly queueLimit: QueueLimit;
  readonly steps: StepListener;
  readonly clock: Clock;
  readonly table: ModelTable;
  /** Asks the manager for the memory; rejects with `insufficient_memory`, or `load_cancelled` if the row is gone. */
  readonly reserve: (request: Omit<ReserveRequest, "type" | "reply">) => Promise<void>;
  /** Asks it for more where the engine had too little; resolves when a model has gone, rejects where none can. */
  readonly more: (request: Omit<MoreRoomRequest, "type" | "reply">) => Promise<void>;
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
  const { table, clock } = context;
  // an engine may go on to tell how far it is when nobody wants the load any more, or when it is over
  let isOver = false;
  const onProgress: Progress = (phase, fraction) => {
    if (!isOver && !signal.aborted) order.onProgress?.(phase, fraction);
  };
  const life = { id, incarnation };
  const released: LifecycleFact = { ...life, type: "memory.released" };
  const failed = (error: unknown, phase: LoadPhase = "start"): LifecycleFact => ({
    ...life,
    type: "load.failed",
    error: loadError(id, phase, error),
  });
  let backing: Backing;
  let plan: PlannedLoad;
  try {
    const onPhase = (phase: LoadProgress["phase"]) => onProgress(phase, 0);
    const onDownload = (fraction: number) => onProgress("download", fraction);
    const asked = { id, source, settings, signal, mayDownload: true, onPhase, onDownload };
    plan = await planLoad({ ...context, ...asked });
    signal.throwIfAborted();
    await context.reserve({ ...life, ...plan });
    signal.throwIfAborted();
    backing = await startWithRoom(order, plan, context, onProgress, signal);
  } catch (error) {
    isOver = true;
    // an engine that could not give back what it took says so by this error
    const held = isModelSupervisorError(error, "dispose_failed")
      ? ({ ...life, type: "dispose.failed", error } as const)
      : released;
    return signal.aborted ? [held] : [held, failed(error)];
  }

  // from here on the backing is ours to give back: when nobody wants it any more, and when it does not work
  let phase: LoadPhase = "start";
  try {
    if (settings.residency.warmUp && !signal.aborted) {
      phase = "warm-up";
      onProgress(phase, 0);
      await warmUp(backing, plan.profile, signal);
    }
    isOver = true;
    if (signal.aborted) return await giveBack(backing, life);
    const held = backing.memory();
    checkNeed(source, held);
    const measured = claimOf(held, settings.engine, plan.devices);
    const asOf = table.measuredCount();
    const seen = { devices: await context.backend.devices(), asOf };
    return [{ ...life, type: "load.done", live: new LiveModel(backing), measured, at: clock.now(), seen }];
  } catch (error) {
    isOver = true;
    const rest = await giveBack(backing, life);
    return signal.aborted ? rest : [...rest, failed(error, phase)];
  }
}

/** Where the engine runs out of memory although the plan said that it fits, one model more goes, and it is tried once more. */
async function startWithRoom(
  order: LoadOrder,
  plan: PlannedLoad,
  context: LoadContext,
  onProgress: Progress,
  signal: AbortSignal,
): Promise<Backing> {
  try {
    return await start(order, plan, context, onProgress, signal);
  } catch (error) {
    if (signal.aborted || !isModelSupervisorError(error, "insufficient_memory")) throw error;
    await context.more({ id: order.id, incarnation: order.incarnation, error });
    signal.throwIfAborted();
    return start(order, plan, context, onProgress, signal);
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
