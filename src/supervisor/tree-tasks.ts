import type { Life, LifecycleFact } from "../manager/protocol.js";
import type { LoadOrder, Tasks } from "../manager/tasks.js";
import { incarnationKey } from "../table/model-table.js";
import { DisposeFailedError, LoadFailedError } from "../errors.js";
import { Drain } from "./drain.js";
import { loadTask } from "./load-task.js";
import type { LoadContext } from "./load-task.js";
import type { ChildWork } from "./temporary-children.js";
import { DISPOSE_DEADLINE_MS, unloadTask } from "./unload-task.js";

export interface TreeTasksInput extends LoadContext {
  readonly report: (fact: LifecycleFact) => void;
  /** Starts a child of `loads` or `backings`, or stops one of `loads`. */
  readonly start: (supervisor: "loads" | "backings", childId: string, work: ChildWork) => void;
  readonly stop: (childId: string) => void;
}

export interface TreeTasks extends Tasks {
  /** Stops what runs in `loads`: a supervisor that has failed leaves its children running. */
  abandon(): void;
}

/** The manager's orders as children of `loads` and `backings`. */
export function treeTasks(input: TreeTasksInput): TreeTasks {
  const { clock, report } = input;
  const drains = new Map<string, Drain>();
  let abandoned = new AbortController();
  const stoppable = (signal: AbortSignal) => AbortSignal.any([signal, abandoned.signal]);

  /** A load that has been aborted has to end some time; if it does not, those who wait for its memory are told. */
  async function watchAborted(order: LoadOrder, signal: AbortSignal): Promise<readonly LifecycleFact[]> {
    const { id, incarnation } = order;
    let deadline: unknown;
    const arm = () => {
      const error = new DisposeFailedError(
        id,
        `its load did not end within ${DISPOSE_DEADLINE_MS / 1000} s after its abort`,
      );
      deadline = clock.setTimeout(
        () => report({ type: "dispose.failed", id, incarnation, error }),
        DISPOSE_DEADLINE_MS,
      );
    };
    signal.addEventListener("abort", arm, { once: true });
    try {
      return await loadTask(order, input, signal);
    } finally {
      signal.removeEventListener("abort", arm);
      if (deadline !== undefined) clock.clearTimeout(deadline);
    }
  }

  return {
    abandon() {
      abandoned.abort();
      abandoned = new AbortController();
    },
    load(order) {
      const { id, incarnation } = order;
      input.start("loads", childId("load", order), {
        run: (signal) => watchAborted(order, stoppable(signal)),
        died: (error) => [
          taskDied(order, error),
          { type: "load.failed", id, incarnation, error: new LoadFailedError(id, "start", error) },
        ],
      });
    },
    abortLoad(life) {
      input.stop(childId("load", life));
    },
    unload(order) {
      const id = childId("unload", order);
      const drain = new Drain(order, clock);
      drains.set(id, drain);
      input.start("loads", id, {
        run: (signal) =>
          unloadTask(order, { drain, clock, report }, stoppable(signal)).finally(() => {
            if (drains.get(id) === drain) drains.delete(id);
          }),
        died: (error) => [taskDied(order, error)],
      });
    },
    hastenUnload(life, timeoutMs) {
      drains.get(childId("unload", life))?.hasten(timeoutMs);
    },
    watch({ id, incarnation }, live) {
      input.start("backings", childId("backing", { id, incarnation }), {
        run: async () => [{ type: "backing.down", id, incarnation, exit: await live.backing.exited }],
        // `exited` never rejects, says the port; a backend that breaks the port has broken its model
        died: (cause) => [{ type: "backing.down", id, incarnation, exit: { reason: "crashed", cause } }],
      });
    },
  };
}

/** What the task held is unknown then, so its bytes stay reserved. */
function taskDied({ id, incarnation }: Life, error: unknown): LifecycleFact {
  return { type: "dispose.failed", id, incarnation, error: new DisposeFailedError(id, "its task died", error) };
}

function childId(kind: "load" | "unload" | "backing", { id, incarnation }: Life): string {
  return `${kind}:${incarnationKey(id, incarnation)}`;
}
