import { assign, enqueueActions, setup } from "xstate";
import type { ActorRefFrom, ErrorActorEvent } from "xstate";
import type { ExecutorInput } from "../manager/executor.js";
import { managerMachine } from "../manager/manager-machine.js";
import { recordRestart } from "./restart-intensity.js";
import { temporaryChildrenMachine } from "./temporary-children.js";

/**
 * The children in the order in which they depend on each other, which is why the strategy is `rest_for_one`: a manager
 * whose backings supervisor is gone would watch nothing, and half-done loads of a dead manager must stop with it.
 */
export const CHILDREN = ["backings", "manager", "loads"] as const;
export type ChildName = (typeof CHILDREN)[number];

export type ManagerRef = ActorRefFrom<typeof managerMachine>;
export type TemporaryChildrenRef = ActorRefFrom<typeof temporaryChildrenMachine>;

export interface RootInput {
  readonly manager: ExecutorInput;
  readonly now: () => number;
  /** Told when a part has failed, before the parts that depend on it are started again. */
  readonly onFailed: (child: string, error: unknown) => void;
  /** Told when they have been started. */
  readonly onRestarted: (child: string) => void;
}

interface RootContext {
  readonly input: RootInput;
  /** When parts of the tree were restarted. */
  readonly restarts: readonly number[];
  readonly failure: { readonly child: string; readonly error: unknown } | undefined;
}

/** Ends in `closed` when told to, and in `exhausted` when a child fails more often than is allowed. */
export const rootMachine = setup({
  types: {
    context: {} as RootContext,
    input: {} as RootInput,
    events: {} as { readonly type: "tree.stop" } | ErrorActorEvent<unknown, string>,
  },
  actors: { backings: temporaryChildrenMachine, manager: managerMachine, loads: temporaryChildrenMachine },
  actions: {
    /** Starts the children from the one at `first` on; their names in the system are free by then. */
    startFrom: enqueueActions(({ context, enqueue }, { first }: { first: number }) => {
      const { manager } = context.input;
      if (first <= 0) enqueue.spawnChild("backings", { id: "backings", systemId: "backings" });
      if (first <= 1) enqueue.spawnChild("manager", { id: "manager", systemId: "manager", input: manager });
      enqueue.spawnChild("loads", { id: "loads", systemId: "loads" });
    }),
  },
}).createMachine({
  id: "root",
  context: ({ input }) => ({ input, restarts: [], failure: undefined }),
  initial: "running",
  states: {
    running: {
      entry: { type: "startFrom", params: { first: 0 } },
      on: {
        "tree.stop": "closed",
        "xstate.error.actor.*": [
          {
            guard: ({ context }) => recordRestart(context.restarts, context.input.now()) === undefined,
            actions: assign({ failure: ({ event }) => ({ child: event.actorId, error: event.error }) }),
            target: "exhausted",
          },
          {
            actions: enqueueActions(({ context, event, enqueue }) => {
              const { now, onFailed, onRestarted } = context.input;
              const first = CHILDREN.findIndex((child) => child === event.actorId);
              for (const child of CHILDREN.slice(first).toReversed()) enqueue.stopChild(child);
              enqueue.assign({ restarts: recordRestart(context.restarts, now()) ?? [] });
              enqueue(() => onFailed(event.actorId, event.error));
              enqueue({ type: "startFrom", params: { first } });
              enqueue(() => onRestarted(event.actorId));
            }),
          },
        ],
      },
    },
    closed: { type: "final" },
    exhausted: { type: "final" },
  },
});
