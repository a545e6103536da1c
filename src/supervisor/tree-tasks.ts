import type { Life, LifecycleFact } from "../manager/protocol.js";
import type { Tasks } from "../manager/tasks.js";
import { incarnationKey } from "../table/model-table.js";
import { Drain } from "./drain.js";
import { loadTask } from "./load-task.js";
import type { LoadContext } from "./load-task.js";
import type { ChildWork } from "./temporary-children.js";
import { unloadTask } from "./unload-task.js";

export interface TreeTasksInput extends LoadContext {
  readonly report: (fact: LifecycleFact) => void;
  /** Starts a child of `loads` or `backings`, or stops one of `loads`. */
  readonly start: (supervisor: "loads" | "backings", childId: string, work: ChildWork) => void;
  readonly stop: (childId: string) => void;
}

/** The manager's orders as children of `loads` and `backings`. */
export function treeTasks(input: TreeTasksInput): Tasks {
  const { clock, report } = input;
  const drains = new Map<string, Drain>();

  return {
    load(order) {
      input.start("loads", childId("load", order), { run: (signal) => loadTask(order, input, signal) });
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
          unloadTask(order, { drain, clock, report }, signal).finally(() => {
            if (drains.get(id) === drain) drains.delete(id);
          }),
      });
    },
    hastenUnload(life, timeoutMs) {
      drains.get(childId("unload", life))?.hasten(timeoutMs);
    },
    watch({ id, incarnation }, live) {
      input.start("backings", childId("backing", { id, incarnation }), {
        run: () =>
          live.backing.exited.then(
            (exit) => [{ type: "backing.down", id, incarnation, exit }],
            // the port says that this cannot happen; a backend that breaks the port has broken its model
            (cause: unknown) => [{ type: "backing.down", id, incarnation, exit: { reason: "crashed", cause } }],
          ),
      });
    },
  };
}

function childId(kind: "load" | "unload" | "backing", { id, incarnation }: Life): string {
  return `${kind}:${incarnationKey(id, incarnation)}`;
}
