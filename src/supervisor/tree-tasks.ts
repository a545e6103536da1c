import { DisposeFailedError, LoadFailedError } from "../errors.js";
import type { Life, LifecycleFact } from "../manager/protocol.js";
import type { LoadOrder, Tasks } from "../manager/tasks.js";
import { incarnationKey } from "../table/model-table.js";
import { Drain } from "./drain.js";
import { checkTask } from "./check-task.js";
import { loadTask } from "./load-task.js";
import type { LoadContext } from "./load-task.js";
import type { ChildWork } from "./temporary-children.js";
import { DISPOSE_DEADLINE_MS, unloadTask } from "./unload-task.js";

export interface TreeTasksInput extends LoadContext {
  /** Brings a fact to the manager of the moment. */
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
  const running = new Set<AbortController>();

  /** Runs in `loads`; whatever happens to it, what it has to say is said. */
  function startTask(
    childId: string,
    run: (signal: AbortSignal) => Promise<readonly LifecycleFact[]>,
    died: (error: unknown) => readonly LifecycleFact[],
  ): void {
    input.start("loads", childId, async (signal) => {
      const stop = new AbortController();
      const forward = () => stop.abort();
      signal.addEventListener("abort", forward, { once: true });
      running.add(stop);
      const facts = await run(stop.signal).catch(died);
      running.delete(stop);
      for (const fact of facts) report(fact);
    });
  }

  /** A load that has been aborted has to end some time; if it does not, those who wait for its memory are told. */
  async function watchedLoad(order: LoadOrder, signal: AbortSignal): Promise<readonly LifecycleFact[]> {
    const { id, incarnation } = order;
    let deadline: unknown;
    const arm = () => {
      const detail = `its load did not end within ${DISPOSE_DEADLINE_MS / 1000} s after its abort`;
      const stuck = { type: "dispose.failed", id, incarnation, error: new DisposeFailedError(id, detail) } as const;
      deadline = clock.setTimeout(() => report(stuck), DISPOSE_DEADLINE_MS);
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
      for (const stop of running) stop.abort();
    },
    load(order) {
      const { id, incarnation } = order;
      startTask(
        `load:${keyOf(order)}`,
        (signal) => watchedLoad(order, signal),
        (error) => [
          taskDied(order, error),
          { type: "load.failed", id, incarnation, error: new LoadFailedError(id, "start", error) },
        ],
      );
    },
    check(order) {
      const { id, incarnation } = order;
      startTask(
        `check:${keyOf(order)}`,
        (signal) => checkTask(order, input, signal),
        (error) => [{ type: "check.failed", id, incarnation, error: new LoadFailedError(id, "resolve", error) }],
      );
    },
    abortLoad(life) {
      input.stop(`load:${keyOf(life)}`);
    },
    unload(order) {
      const key = keyOf(order);
      const drain = new Drain(order, clock);
      drains.set(key, drain);
      startTask(
        // an order may follow on one whose child is not quite gone
        `unload:${key}/${order.order}`,
        async (signal) => {
          try {
            return await unloadTask(
              order,
              { drain, clock, report, backend: input.backend, table: input.table },
              signal,
            );
          } finally {
            if (drains.get(key) === drain) drains.delete(key);
          }
        },
        (error) => [taskDied(order, error)],
      );
    },
    hastenUnload(life, timeoutMs, reason) {
      drains.get(keyOf(life))?.hasten(timeoutMs, reason);
    },
    watch({ id, incarnation }, live) {
      input.start("backings", `backing:${keyOf({ id, incarnation })}`, async () => {
        report({ type: "backing.down", id, incarnation, exit: await live.exited });
      });
    },
  };
}

/** What the task held is unknown then, so its bytes stay reserved. */
function taskDied({ id, incarnation }: Life, error: unknown): LifecycleFact {
  return { type: "dispose.failed", id, incarnation, error: new DisposeFailedError(id, "its task died", error) };
}

function keyOf({ id, incarnation }: Life): string {
  return incarnationKey(id, incarnation);
}
