import { enqueueActions, fromPromise, setup, stopChild } from "xstate";
import type { DoneActorEvent, ErrorActorEvent } from "xstate";
import type { LifecycleFact } from "../manager/protocol.js";

/** The work of one child. When stopped, its `signal` aborts; it then cleans up and says so like any other. */
export interface ChildWork {
  run(signal: AbortSignal): Promise<readonly LifecycleFact[]>;
  /** What the manager is told if `run` rejects, which it does only by a bug: nobody may wait for a child that is gone. */
  died(error: unknown): readonly LifecycleFact[];
}

export interface TemporaryChildrenInput {
  /** Brings facts to the manager of the moment. */
  readonly report: (fact: LifecycleFact) => void;
}

interface WorkInput extends TemporaryChildrenInput {
  readonly work: ChildWork;
  /** False once the supervisor has failed, which leaves its children running. */
  readonly isSupervised: () => boolean;
}

/**
 * A supervisor of children that are never restarted: `backings` and `loads`. A finished child is removed first and then
 * reported, so that its name is free when the manager acts on the report.
 */
export const temporaryChildrenMachine = setup({
  types: {
    context: {} as TemporaryChildrenInput,
    input: {} as TemporaryChildrenInput,
    events: {} as
      | { readonly type: "child.start"; readonly childId: string; readonly work: ChildWork }
      | { readonly type: "child.stop"; readonly childId: string }
      | DoneActorEvent<readonly LifecycleFact[], string>
      | ErrorActorEvent<unknown, string>,
  },
  actors: {
    work: fromPromise<readonly LifecycleFact[], WorkInput>(
      async ({ input: { work, report, isSupervised }, signal }) => {
        const facts = await work.run(signal).catch((error: unknown) => work.died(error));
        // the result of a stopped actor is dropped, and so is that of a failed supervisor's; what it says must not be
        if (!signal.aborted && isSupervised()) return facts;
        for (const fact of facts) report(fact);
        return [];
      },
    ),
  },
}).createMachine({
  id: "temporary-children",
  context: ({ input }) => input,
  on: {
    "child.start": {
      actions: enqueueActions(({ context, event, enqueue, self }) => {
        const isSupervised = () => self.getSnapshot().status === "active";
        enqueue.spawnChild("work", { id: event.childId, input: { ...context, work: event.work, isSupervised } });
      }),
    },
    "child.stop": { actions: stopChild(({ event }) => event.childId) },
    "xstate.done.actor.*": {
      actions: [
        stopChild(({ event }) => event.actorId),
        ({ context, event }) => {
          for (const fact of event.output) context.report(fact);
        },
      ],
    },
    // cannot happen while `died` does not throw; handled by name all the same, for else it would end this supervisor
    "xstate.error.actor.*": { actions: stopChild(({ event }) => event.actorId) },
  },
});
