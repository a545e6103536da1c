import { enqueueActions, fromPromise, setup, stopChild } from "xstate";
import type { DoneActorEvent, ErrorActorEvent } from "xstate";

/**
 * The work of one child. It says itself what came of it, for the result of a promise actor is lost if the actor is stopped
 * in the moment in which it has one, and a result may be a whole model. When stopped, its `signal` aborts.
 */
export type ChildWork = (signal: AbortSignal) => Promise<void>;

/**
 * A supervisor of children that are never restarted: `backings` and `loads`. Child ids are never used twice, so one that
 * has said what it had to say may still be there when its successor starts.
 */
export const temporaryChildrenMachine = setup({
  types: {
    events: {} as
      | { readonly type: "child.start"; readonly childId: string; readonly work: ChildWork }
      | { readonly type: "child.stop"; readonly childId: string }
      | DoneActorEvent<void, string>
      | ErrorActorEvent<unknown, string>,
  },
  actors: {
    work: fromPromise<void, { readonly work: ChildWork }>(({ input, signal }) => input.work(signal)),
  },
}).createMachine({
  id: "temporary-children",
  on: {
    "child.start": {
      actions: enqueueActions(({ event, enqueue }) => {
        enqueue.spawnChild("work", { id: event.childId, input: { work: event.work } });
      }),
    },
    "child.stop": { actions: stopChild(({ event }) => event.childId) },
    "xstate.done.actor.*": { actions: stopChild(({ event }) => event.actorId) },
    // work reports its failures itself; an error is handled by name all the same, for else it would end this supervisor
    "xstate.error.actor.*": { actions: stopChild(({ event }) => event.actorId) },
  },
});
