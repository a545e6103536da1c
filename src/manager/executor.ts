/** Carries out what `decide` says: writes the table, orders tasks, answers callers. Runs inside the manager's mailbox only. */
import type { ModelDeclaration } from "../api.js";
import { ClosedError, LoadCancelledError, LoadFailedError, NotLoadedError, RequestAbortedError } from "../errors.js";
import type { ModelId, ModelInfo } from "../model.js";
import { infoOf } from "../table/entry.js";
import { incarnationKey } from "../table/model-table.js";
import { Bookkeeping } from "./bookkeeping.js";
import type { BookkeepingInput } from "./bookkeeping.js";
import { decide } from "./decide.js";
import { atOnce, blank } from "./decision.js";
import type { Action } from "./decision.js";
import { loadSettings } from "./options.js";
import type { Life, LifecycleEvent, LoadCall, ManagerEvent, Reply } from "./protocol.js";
import type { Tasks } from "./tasks.js";
import { Waiters } from "./waiters.js";

export interface ExecutorInput extends BookkeepingInput {
  /** The supervisor's, for messages. */
  readonly name: string;
  readonly tasks: Tasks;
  /** Shared with the next manager; what is removed here stays removed. */
  readonly declarations: Map<ModelId, ModelDeclaration>;
}

/** Who gave a command: a load call, or somebody who only wants to know that it is done. */
interface Caller {
  readonly load?: LoadCall;
  readonly reply?: Reply<void>;
}

export class Executor {
  readonly #input: ExecutorInput;
  readonly #books: Bookkeeping;
  /** Callers of `load` and `unload`, by what they wait for. */
  readonly #loads = new Waiters<ModelInfo>();
  readonly #unloads = new Waiters<void>();
  /** Callers of `ready`, by ticket. */
  readonly #ready = new Map<symbol, Reply<void>>();
  readonly #closing: Reply<void>[] = [];
  /** Lives that become the default model when they are ready; one that fails leaves the default as it was. */
  readonly #nextDefaults = new Set<string>();

  constructor(input: ExecutorInput) {
    this.#input = input;
    this.#books = new Bookkeeping(input);
  }

  /** Declares the declared models and loads them, once nothing of an earlier manager's models is left. */
  boot(): void {
    const { table, writer, tasks, declarations, notify } = this.#input;
    for (const lost of [...table.entries()]) {
      writer.delete(lost.id);
      const { id: modelId, incarnation } = lost;
      if (!lost.declared) notify({ name: "model:lost", payload: { modelId, incarnation } });
    }
    writer.setDefault(undefined);
    for (const declaration of declarations.values()) {
      writer.put(blank(declaration.id, declaration.source, loadSettings(declarationOptions(declaration)), true));
      if (declaration.default) writer.setDefault(declaration.id);
    }
    for (const { modelId: id, incarnation, live, stuck } of [...table.reservations()]) {
      if (stuck) continue; // it may never come back
      this.#books.beginOrphan({ id, incarnation });
      if (live === undefined) continue; // an aborted load, which reports by itself
      live.abortRequests(new RequestAbortedError(id, "the manager was restarted"));
      tasks.unload({ id, incarnation, live, ...atOnce(writer.nextOrder()) });
    }
    this.#loadDeclared();
  }

  #loadDeclared(): void {
    if (this.#books.hasOrphans || this.#closing.length > 0) return;
    for (const id of this.#input.declarations.keys()) {
      if (this.#input.table.get(id)?.incarnation === 0) this.#decide({ type: "model.load", id, source: undefined }, {});
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
        this.#ready.set(event.ticket, event.reply);
        break;
      case "ready.withdraw":
        this.#ready.delete(event.ticket);
        break;
      case "manager.close":
        this.#close(event.timeoutMs, event.reply);
        break;
      case "memory.reserve":
        this.#books.reserve(event);
        break;
      case "tasks.lost":
        this.#resumeTasks();
        break;
      default: {
        const hadOrphans = this.#books.hasOrphans;
        this.#books.enter(event);
        this.#decide(event, {});
        if (hadOrphans) this.#loadDeclared();
      }
    }
    this.#answerReady();
    this.#answerClosing();
  }

  #decide(event: LifecycleEvent, caller: Caller): void {
    const { table, writer } = this.#input;
    const before = table.get(event.id);
    const incarnation = event.type === "model.load" ? writer.nextIncarnation() : 0;
    const { row, actions } = decide(before, event, { incarnation, order: writer.nextOrder() });
    if (row === undefined) {
      if (before?.declared) this.#input.declarations.delete(event.id);
      writer.delete(event.id);
      if (table.defaultId() === event.id) writer.setDefault(undefined);
    } else if (row !== before) {
      writer.put(row);
      const key = incarnationKey(row.id, row.incarnation);
      if (caller.load?.makeDefault && row.status === "loading") this.#nextDefaults.add(key);
      if (row.status === "ready" && this.#nextDefaults.delete(key)) writer.setDefault(row.id);
    }
    for (const action of actions) this.#perform(action, event, caller);
  }

  #perform(action: Action, { id }: LifecycleEvent, { load, reply }: Caller): void {
    const { tasks, notify } = this.#input;
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
      case "start-load":
        this.#startLoad(id, load);
        break;
      case "abort-load":
        tasks.abortLoad({ id, incarnation: action.incarnation });
        break;
      case "start-unload":
        this.#books.begin({ id, incarnation: action.incarnation });
        tasks.unload({ id, ...action });
        break;
      case "hasten-unload":
        tasks.hastenUnload({ id, incarnation: action.incarnation }, action.timeoutMs, action.reason);
        break;
      case "watch":
        tasks.watch({ id, incarnation: action.incarnation }, action.live);
        break;
      case "abort-requests":
        action.live.abortRequests(action.error);
        break;
      case "emit":
        notify(action.notice);
        break;
    }
  }

  #startLoad(id: ModelId, load: LoadCall | undefined): void {
    const row = this.#input.table.get(id);
    if (row === undefined) return;
    const { incarnation, source, settings } = row;
    this.#books.begin({ id, incarnation });
    this.#input.tasks.load({ id, incarnation, source, settings, onProgress: load?.onProgress });
  }

  #settle({ what, error }: Extract<Action, { do: "settle" }>, life: Life): void {
    if (what === "unload") {
      for (const reply of this.#unloads.take(life)) error ? reply.fail(error) : reply.ok();
      return;
    }
    this.#nextDefaults.delete(incarnationKey(life.id, life.incarnation));
    const { table } = this.#input;
    const row = table.get(life.id);
    for (const reply of this.#loads.take(life)) {
      if (error || row === undefined) reply.fail(error ?? new LoadCancelledError(life.id));
      else reply.ok(infoOf(row, table.reservation(row.id, row.incarnation)));
    }
  }

  /** Loads under way have failed (their tasks clean up and report by themselves); unloads are ordered again as they were. */
  #resumeTasks(): void {
    const { table, tasks, writer } = this.#input;
    for (const { id, incarnation } of this.#books.busyLives()) {
      const row = table.get(id);
      if (row?.incarnation === incarnation && row.status === "loading") {
        const error = new LoadFailedError(id, "start", new Error("the task was lost"));
        this.#decide({ type: "load.failed", id, incarnation, error }, {});
      }
      const live = table.reservation(id, incarnation)?.live;
      if (live === undefined) continue;
      const order = writer.nextOrder();
      const leaving = row?.incarnation === incarnation ? row.leaving : undefined;
      if (row && leaving) writer.put({ ...row, leaving: { ...leaving, order } });
      tasks.unload({ ...atOnce(order), ...leaving, order, id, incarnation, live });
    }
    this.#books.dropUnclaimed();
  }

  #close(timeoutMs: number, reply: Reply<void>): void {
    this.#closing.push(reply);
    for (const waiting of this.#ready.values()) waiting.fail(new ClosedError(this.#input.name));
    this.#ready.clear();
    for (const { id, status } of [...this.#input.table.entries()]) {
      if (status === "registered" || status === "error") continue;
      this.#decide({ type: "model.unload", id, timeoutMs, force: true, forget: false, reason: "close" }, {});
    }
  }

  #answerReady(): void {
    if (this.#ready.size === 0 || this.#books.hasOrphans) return;
    const declared = [...this.#input.table.entries()].filter((row) => row.declared);
    if (declared.some((row) => row.status === "loading")) return;
    const failed = declared.filter((row) => row.status === "error");
    const names = failed.map((row) => `"${row.id}"`).join(", ");
    for (const reply of this.#ready.values()) {
      if (failed.length === 0) reply.ok();
      else
        reply.fail(
          new AggregateError(
            failed.map((row) => row.error),
            `Declared models are not ready: ${names}.`,
          ),
        );
    }
    this.#ready.clear();
  }

  #answerClosing(): void {
    if (this.#closing.length === 0 || !this.#books.isIdle) return;
    for (const reply of this.#closing.splice(0)) reply.ok();
  }
}

function declarationOptions({ id: _id, source: _source, ...options }: ModelDeclaration) {
  return options;
}
