import { enqueueActions, fromPromise, setup, stopChild } from "xstate";
import type { DoneActorEvent, ErrorActorEvent } from "xstate";
import type { LifecycleFact } from "../manager/protocol.js";

/** The work of one child. When stopped, its `signal` aborts; it then cleans up and says so like any other. */
export interface ChildWork {
  run(signal: AbortSignal): Promise<readonly LifecycleFact[]>;
}

export interface TemporaryChildrenInput {
  /** Brings facts to the manager of the moment. */
  readonly report: (fact: LifecycleFact) => void;
  /** Told of a child that threw; tasks report their failures as facts, so this is a bug. */
  readonly onBug: (childId: string, error: unknown) => void;
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
    work: fromPromise<readonly LifecycleFact[], { work: ChildWork; report: TemporaryChildrenInput["report"] }>(
      async ({ input: { work, report }, signal }) => {
        const facts = await work.run(signal);
        // the result of a stopped actor is dropped, but what it says about memory must not be
        if (!signal.aborted) return facts;
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
      actions: enqueueActions(({ context, event, enqueue }) => {
        enqueue.spawnChild("work", { id: event.childId, input: { work: event.work, report: context.report } });
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
    "xstate.error.actor.*": {
      actions: [
        stopChild(({ event }) => event.actorId),
        ({ context, event }) => context.onBug(event.actorId, event.error),
      ],
    },
  },
});
