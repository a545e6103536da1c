import { enqueueActions, fromCallback, setup, stopChild } from "xstate";
import type { ErrorActorEvent, EventObject } from "xstate";

/** The work of one child. It says itself what came of it. When the child is stopped before, its `signal` aborts. */
export type ChildWork = (signal: AbortSignal) => Promise<void>;

/** Exported, since the declaration of the root machine names it. */
export interface ChildInput {
  readonly childId: string;
  readonly work: ChildWork;
}

/**
 * A supervisor of children that are never restarted: `backings` and `loads`. Child ids are never used twice, so one that
 * has said what it had to say may still be there when its successor starts.
 *
 * A child says that it has ended by an event of one name, not by `xstate.done.actor.<id>`: of every name that a machine has
 * seen, xstate keeps what it means, for as long as the process runs.
 */
export const temporaryChildrenMachine = setup({
  types: {
    events: {} as
      | ({ readonly type: "child.start" } & ChildInput)
      | { readonly type: "child.stop"; readonly childId: string }
      | { readonly type: "child.ended"; readonly childId: string }
      | ErrorActorEvent<unknown, string>,
  },
  actors: {
    work: fromCallback<EventObject, ChildInput>(({ input: { childId, work }, sendBack }) => {
      const stop = new AbortController();
      let hasEnded = false;
      const end = () => {
        if (hasEnded) return;
        hasEnded = true;
        sendBack({ type: "child.ended", childId });
      };
      // what it rejects with it has reported itself
      void (async () => work(stop.signal))().then(end, end);
      return () => {
        if (!hasEnded) stop.abort();
        hasEnded = true;
      };
    }),
  },
}).createMachine({
  id: "temporary-children",
  on: {
    "child.start": {
      actions: enqueueActions(({ event: { childId, work }, enqueue }) => {
        enqueue.spawnChild("work", { id: childId, input: { childId, work } });
      }),
    },
    "child.stop": { actions: stopChild(({ event }) => event.childId) },
    "child.ended": { actions: stopChild(({ event }) => event.childId) },
    // an error is handled by name, for else it would end this supervisor
    "xstate.error.actor.*": { actions: stopChild(({ event }) => event.actorId) },
  },
});
