import { createActor } from "xstate";
import type { Actor } from "xstate";
import type { Clock, Logger, ModelSupervisorOptions, SupervisionNode } from "../api.js";
import type { Backend, Backing, QueueLimit, StepListener } from "../backends/backend.js";
import { ClosedError, RequestAbortedError, SupervisorExhaustedError } from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import { Calls } from "../manager/calls.js";
import { comesBack } from "../manager/decision.js";
import type { Notice } from "../manager/decision.js";
import { isEager } from "../manager/readiness.js";
import type { Declared, Life, LifecycleFact, ManagerEvent } from "../manager/protocol.js";
import type { ModelId } from "../model.js";
import type { Entry } from "../table/entry.js";
import type { ModelTable, TableWriter } from "../table/model-table.js";
import { recentRestarts } from "./restart-intensity.js";
import { rootMachine } from "./root-machine.js";
import type { ManagerRef, TemporaryChildrenRef } from "./root-machine.js";
import { treeTasks } from "./tree-tasks.js";

export interface TreeInput {
  readonly name: string;
  readonly table: ModelTable;
  readonly writer: TableWriter;
  readonly backend: Backend;
  readonly overBudget: NonNullable<ModelSupervisorOptions["overBudget"]>;
  readonly maxWaitMs: number;
  readonly sweepIntervalMs: number;
  readonly maxThreads: number;
  readonly queueLimit: QueueLimit;
  readonly steps: StepListener;
  /** Those that were removed are missing: a restarted manager does not bring them back. */
  readonly declarations: Map<ModelId, Declared>;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly notify: (notice: Notice) => void;
  readonly onJoined: (id: ModelId) => void;
}

/** The running tree: the only place that knows the actors by name. */
export class Tree {
  readonly #input: TreeInput;
  readonly #root: Actor<typeof rootMachine>;
  #ended: ModelSupervisorError | undefined;
  readonly calls = new Calls((event) => this.#sendToManager(event));
  /** Resolves when the tree has ended: with the error if it was exhausted. */
  readonly ended: Promise<ModelSupervisorError | undefined>;

  constructor(input: TreeInput) {
    const { name, clock, logger } = input;
    this.#input = input;
    const report = (fact: LifecycleFact) => this.#sendToManager(fact);
    const tasks = treeTasks({
      backend: input.backend,
      table: input.table,
      maxThreads: input.maxThreads,
      queueLimit: input.queueLimit,
      steps: input.steps,
      clock,
      report,
      reserve: (request) => this.calls.call(request.id, (reply) => ({ ...request, type: "memory.reserve", reply })),
      more: (request) => this.calls.call(request.id, (reply) => ({ ...request, type: "memory.more", reply })),
      start: (supervisor, childId, work) => this.#children(supervisor)?.send({ type: "child.start", childId, work }),
      stop: (childId) => this.#children("loads")?.send({ type: "child.stop", childId }),
    });
    this.#root = createActor(rootMachine, {
      input: {
        manager: { ...input, tasks, random: Math.random, send: (event) => this.#sendToManager(event) },
        now: () => clock.now(),
        onFailed: (child, error) => {
          logger.warn(`Part "${child}" of supervisor "${name}" failed and is restarted.`, error);
          tasks.abandon();
          this.calls.failAll((subject) => new RequestAbortedError(subject, "the manager was restarted"));
        },
        onRestarted: (child) => {
          // the others are restarted with a manager that starts from nothing
          if (child === "loads") this.#sendToManager({ type: "tasks.lost" });
        },
      },
    });
    this.ended = new Promise((resolve) => {
      const end = (error: ModelSupervisorError | undefined) => {
        this.#ended = error ?? new ClosedError(name);
        tasks.abandon();
        this.calls.failAll(() => this.#ended);
        resolve(error);
      };
      this.#root.subscribe({
        complete: () => {
          const { failure } = this.#root.getSnapshot().context;
          end(failure && new SupervisorExhaustedError(name, failure.child, failure.error));
        },
        error: (error) => end(new SupervisorExhaustedError(name, "root", error)),
      });
    });
    this.#root.start();
  }

  /** Ends the tree. What is still loaded is the caller's to have unloaded before. */
  stop(): void {
    if (this.#ended === undefined) this.#root.send({ type: "tree.stop" });
  }

  describe(): SupervisionNode {
    const { children, context } = this.#root.getSnapshot();
    return {
      id: this.#input.name,
      kind: "supervisor",
      strategy: "rest_for_one",
      restarts: recentRestarts(context.restarts, this.#input.clock.now()).length,
      ready: [...this.#input.table.entries()].filter(isEager).every(isServed),
      children: [
        ...supervisorNode("backings", this.#children("backings")),
        ...(children["manager"] ? [{ id: "manager", kind: "worker", children: [] } as const] : []),
        ...supervisorNode("loads", this.#children("loads")),
      ],
    };
  }

  #sendToManager(event: ManagerEvent): void {
    const manager: ManagerRef | undefined = this.#root.system.get("manager");
    if (this.#ended === undefined && manager !== undefined) manager.send(event);
    // memory that comes back after the end, from a disposal that hung: nobody else is left to keep the books
    else if (event.type === "memory.released") this.#input.writer.unreserve(event.id, event.incarnation);
    // a load that was done as the tree ended: nobody is left to have it
    else if (event.type === "load.done") void this.#giveBack(event.live.backing, event);
    else if ("reply" in event) event.reply.fail(this.#ended ?? new ClosedError(this.#input.name));
  }

  async #giveBack(backing: Backing, life: Life): Promise<void> {
    try {
      await backing.dispose();
      this.#input.writer.unreserve(life.id, life.incarnation);
    } catch (error) {
      this.#input.logger.warn(`Model "${life.id}" could not be disposed after the end of its supervisor.`, error);
    }
  }

  #children(name: "backings" | "loads"): TemporaryChildrenRef | undefined {
    return this.#root.system.get(name);
  }
}

/** It is ready, or was: what goes by its TTL or to make room is there for the next request. */
function isServed(row: Entry): boolean {
  const { status, onDemand } = row;
  return status === "ready" || (onDemand && status !== "error") || (status === "unloading" && comesBack(row));
}

function supervisorNode(id: string, ref: TemporaryChildrenRef | undefined): SupervisionNode[] {
  if (ref === undefined) return [];
  const children = Object.keys(ref.getSnapshot().children).map(
    (child) => ({ id: child, kind: "worker", children: [] }) as const,
  );
  return [{ id, kind: "supervisor", strategy: "one_for_one", children }];
}
