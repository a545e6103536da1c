import { setup } from "xstate";
import { Executor } from "./executor.js";
import type { ExecutorInput } from "./executor.js";
import type { ManagerEvent } from "./protocol.js";

/**
 * The manager's mailbox: one event runs to completion before the next, so writes to the table need no lock. What an
 * event means is decided in `decide`, and carried out by the executor. The manager owns no child actors (see ADR 0002), so
 * a catch-all transition hides none of their errors.
 */
export const managerMachine = setup({
  types: {
    context: {} as { readonly executor: Executor },
    input: {} as ExecutorInput,
    events: {} as ManagerEvent,
  },
  actions: {
    boot: ({ context }) => context.executor.boot(),
    handle: ({ context, event }) => context.executor.handle(event),
  },
}).createMachine({
  id: "manager",
  context: ({ input }) => ({ executor: new Executor(input) }),
  entry: "boot",
  on: { "*": { actions: "handle" } },
});
