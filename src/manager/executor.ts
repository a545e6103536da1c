/** Carries out what `decide` says: writes the table, orders tasks, answers callers. Runs inside the manager's mailbox only. */
import type { ModelDeclaration } from "../api.js";
import {
  InsufficientMemoryError,
  LoadCancelledError,
  LoadFailedError,
  NotLoadedError,
  RequestAbortedError,
} from "../errors.js";
import type { MemoryBudget, ModelId, ModelInfo } from "../model.js";
import { infoOf } from "../table/entry.js";
import type { Entry } from "../table/entry.js";
import { incarnationKey } from "../table/model-table.js";
import type { ModelTable, TableWriter } from "../table/model-table.js";
import { blank, decide } from "./decide.js";
import type { Action, Notice } from "./decide.js";
import { checkFit, resolveBudget } from "./memory/budget.js";
import { loadSettings } from "./options.js";
import type { Life, LifecycleEvent, LoadCall, ManagerEvent, Reply, ReserveRequest } from "./protocol.js";
import type { Tasks } from "./tasks.js";
import { Waiters } from "./waiters.js";

export interface ExecutorInput {
  readonly table: ModelTable;
  readonly writer: TableWriter;
  readonly tasks: Tasks;
  readonly budget: MemoryBudget;
  /** Shared with the next manager; what is removed here stays removed. */
  readonly declarations: Map<ModelId, ModelDeclaration>;
  readonly notify: (notice: Notice) => void;
}

/** Who gave a command: a load call, or somebody who only wants to know that it is done. */
interface Caller {
  readonly load?: LoadCall;
  readonly reply?: Reply<void>;
}

export class Executor {
  readonly #input: ExecutorInput;
  /** Callers of `load` and `unload`, by what they wait for. */
  readonly #loads = new Waiters<ModelInfo>();
  readonly #unloads = new Waiters<void>();
  readonly #ready = new Waiters<void>();
  readonly #closing: Reply<void>[] = [];
  /** Lives that become the default model when they are ready; one that fails leaves the default as it was. */
  readonly #nextDefaults = new Set<string>();
  /** Lives that a task works on. */
  readonly #busy = new Map<string, Life>();
  /** Lives that an earlier manager left behind; the eager models wait for their memory. */
  readonly #orphans = new Set<string>();

  constructor(input: ExecutorInput) {
    this.#input = input;
  }

  /** Declares the declared models and loads them, once nothing of an earlier manager's models is left. */
  boot(): void {
    const { table, writer, tasks, declarations, notify } = this.#input;
    for (const lost of [...table.entries()]) {
      writer.delete(lost.id);
      notify({ name: "model:lost", payload: { modelId: lost.id, incarnation: lost.incarnation } });
    }
    writer.setDefault(undefined);
    for (const declaration of declarations.values()) {
      writer.put(blank(declaration.id, declaration.source, loadSettings(declarationOptions(declaration)), true));
      if (declaration.default) writer.setDefault(declaration.id);
    }
    for (const { modelId, incarnation, live } of [...table.reservations()]) {
      const key = incarnationKey(modelId, incarnation);
      this.#orphans.add(key);
      this.#begin({ id: modelId, incarnation });
      if (live === undefined) continue; // an aborted load, which reports by itself
      live.abortRequests(new RequestAbortedError(modelId, "the manager was restarted"));
      tasks.unload({ id: modelId, incarnation, live, timeoutMs: 0, force: true });
    }
    this.#loadDeclared();
  }

  #loadDeclared(): void {
    if (this.#orphans.size > 0 || this.#closing.length > 0) return;
    for (const id of this.#input.declarations.keys()) {
      if (this.#input.table.get(id)?.status === "registered")
        this.#decide({ type: "model.load", id, source: undefined }, {});
    }
  }

  handle(event: ManagerEvent): void {
    switch (event.type) {
      case "model.load":
        this.#decide(event, { load: event });
        break;
      case "model.unload":
        this.#decide(event, { reply: event.reply });
        break;
      case "load.withdraw": {
        const left = this.#loads.withdraw(event.ticket);
        if (left) this.#decide({ ...left, type: "load.abandoned" }, {});
        break;
      }
      case "default.set":
        if (this.#input.table.get(event.id) === undefined) event.reply.fail(new NotLoadedError(event.id));
        else {
          this.#input.writer.setDefault(event.id);
          event.reply.ok();
        }
        break;
      case "ready.wait":
        this.#ready.add(READY, event.reply, event.ticket);
        break;
      case "ready.withdraw":
        this.#ready.withdraw(event.ticket);
        break;
      case "manager.close":
        this.#close(event.timeoutMs, event.reply);
        break;
      case "memory.reserve":
        this.#reserve(event);
        break;
      case "tasks.lost":
        this.#resumeTasks();
        break;
      default:
        this.#account(event);
        this.#decide(event, {});
    }
    this.#answerReady();
    this.#answerClosing();
  }

  #begin(life: Life): void {
    this.#busy.set(incarnationKey(life.id, life.incarnation), life);
  }

  /** Loads under way have failed (their tasks clean up and report by themselves); unloads are ordered again. */
  #resumeTasks(): void {
    const { table, tasks } = this.#input;
    for (const { id, incarnation } of [...this.#busy.values()]) {
      const row = table.get(id);
      if (row?.incarnation === incarnation && row.status === "loading") {
        const error = new LoadFailedError(id, "start", new Error("the task was lost"));
        this.#decide({ type: "load.failed", id, incarnation, error }, {});
      }
      const live = table.reservation(id, incarnation)?.live;
      if (live) tasks.unload({ id, incarnation, live, timeoutMs: 0, force: true });
    }
  }

  /** Keeps the books on memory and tasks, before the row is decided: callers who are answered then see them right. */
  #account(fact: Exclude<LifecycleEvent, { type: "model.load" | "model.unload" | "load.abandoned" }>): void {
    const { table, writer } = this.#input;
    const { id, incarnation } = fact;
    const key = incarnationKey(id, incarnation);
    if (fact.type === "load.failed" || fact.type === "backing.down") return;
    this.#busy.delete(key);
    if (fact.type === "load.done") {
      const claim = table.reservation(id, incarnation);
      if (claim) writer.reserve({ ...claim, ...fact.measured, measured: true, live: fact.live });
    }
    if (fact.type === "memory.released") writer.unreserve(id, incarnation);
    if (this.#orphans.delete(key)) this.#loadDeclared();
  }

  #decide(event: LifecycleEvent, caller: Caller): void {
    const { table, writer } = this.#input;
    const before = table.get(event.id);
    const { row, actions } = decide(before, event, event.type === "model.load" ? writer.nextIncarnation() : 0);
    if (row === undefined) {
      if (before?.declared) this.#input.declarations.delete(event.id);
      writer.delete(event.id);
      if (table.defaultId() === event.id) writer.setDefault(undefined);
    } else if (row !== before) {
      writer.put(row);
      if (caller.load?.makeDefault && row.status === "loading")
        this.#nextDefaults.add(incarnationKey(row.id, row.incarnation));
    }
    for (const action of actions) this.#perform(action, event, caller);
  }

  #perform(action: Action, { id }: LifecycleEvent, caller: Caller): void {
    const { tasks, notify, table } = this.#input;
    const { load, reply } = caller;
    switch (action.do) {
      case "answer":
        if (action.error) (load?.reply ?? reply)?.fail(action.error);
        else reply?.ok();
        break;
      case "await": {
        const life = { id, incarnation: action.incarnation };
        if (action.what === "load" && load) this.#loads.add(life, load.reply, load.ticket);
        if (action.what === "unload" && reply) this.#unloads.add(life, reply);
        break;
      }
      case "settle":
        this.#settle(action, { id, incarnation: action.incarnation });
        break;
      case "start-load": {
        const row = table.get(id);
        if (row === undefined) break;
        const { incarnation, source, settings } = row;
        this.#begin({ id, incarnation });
        tasks.load({ id, incarnation, source, settings, onProgress: load?.onProgress });
        break;
      }
      case "abort-load":
        tasks.abortLoad({ id, incarnation: action.incarnation });
        break;
      case "start-unload":
        this.#begin({ id, incarnation: action.incarnation });
        tasks.unload({ id, ...action });
        break;
      case "hasten-unload":
        tasks.hastenUnload({ id, incarnation: action.incarnation }, action.timeoutMs);
        break;
      case "watch":
        tasks.watch({ id, incarnation: table.get(id)?.incarnation ?? 0 }, action.live);
        break;
      case "abort-requests":
        action.live.abortRequests(action.error);
        break;
      case "emit":
        notify(action.notice);
        break;
    }
  }

  #settle({ what, error }: Extract<Action, { do: "settle" }>, life: Life): void {
    if (what === "unload") {
      for (const reply of this.#unloads.take(life)) error ? reply.fail(error) : reply.ok();
      return;
    }
    const row = this.#input.table.get(life.id);
    if (this.#nextDefaults.delete(incarnationKey(life.id, life.incarnation)) && !error)
      this.#input.writer.setDefault(life.id);
    for (const reply of this.#loads.take(life)) {
      if (error || row === undefined) reply.fail(error ?? new LoadCancelledError(life.id));
      else reply.ok(this.#infoOf(row));
    }
  }

  #infoOf(row: Entry): ModelInfo {
    return infoOf(row, this.#input.table.reservation(row.id, row.incarnation));
  }

  /** Check and claim in one step, so that of two loads racing for the last bytes exactly one gets them. */
  #reserve({ id, incarnation, model, profile, estimate, placement, devices, reply }: ReserveRequest): void {
    const { table, writer, budget, notify } = this.#input;
    const row = table.get(id);
    if (row === undefined || row.incarnation !== incarnation || row.status !== "loading") {
      reply.fail(new LoadCancelledError(id));
      return;
    }
    writer.setDevices(devices);
    const fit = checkFit(placement, resolveBudget(budget, devices), [...table.reservations()]);
    if (!fit.fits) {
      const { device, requiredBytes, availableBytes } = fit;
      notify({ name: "budget:refused", payload: { modelId: id, device, requiredBytes, availableBytes } });
      reply.fail(new InsufficientMemoryError({ modelId: id, device, requiredBytes, availableBytes }));
      return;
    }
    const { mappedBytes } = estimate;
    writer.reserve({ modelId: id, incarnation, placement, mappedBytes, measured: false, live: undefined });
    writer.put({ ...row, model, profile });
    reply.ok();
  }

  #close(timeoutMs: number, reply: Reply<void>): void {
    this.#closing.push(reply);
    for (const { id, status } of [...this.#input.table.entries()]) {
      if (status === "registered" || status === "error") continue;
      this.#decide({ type: "model.unload", id, timeoutMs, force: true, forget: false, reason: "close" }, {});
    }
  }

  #answerReady(): void {
    if (this.#ready.isEmpty || this.#orphans.size > 0) return;
    const declared = [...this.#input.table.entries()].filter((row) => row.declared);
    if (declared.some((row) => row.status === "loading")) return;
    const errors = declared.flatMap((row) => (row.status === "error" && row.error ? [row.error] : []));
    const failed = declared.filter((row) => row.status === "error").map((row) => `"${row.id}"`);
    for (const reply of this.#ready.take(READY)) {
      if (errors.length === 0) reply.ok();
      else reply.fail(new AggregateError(errors, `Declared models are not ready: ${failed.join(", ")}.`));
    }
  }

  #answerClosing(): void {
    if (this.#closing.length === 0 || this.#busy.size > 0) return;
    for (const reply of this.#closing.splice(0)) reply.ok();
  }
}

/** `ready()` waits for no one life. */
const READY: Life = { id: "", incarnation: 0 };

function declarationOptions({ id: _id, source: _source, ...options }: ModelDeclaration) {
  return options;
}
