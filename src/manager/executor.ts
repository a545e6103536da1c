/** Carries out what `decide` says: writes the table, orders tasks, answers callers. Runs inside the manager's mailbox only. */
import type { Clock } from "../api.js";
import { ClosedError, LoadCancelledError, LoadFailedError, NotLoadedError, RequestAbortedError } from "../errors.js";
import type { ModelId, UnloadReason } from "../model.js";
import { idlenessOf } from "../table/entry.js";
import type { Entry } from "../table/entry.js";
import { isExpired } from "../table/expiry.js";
import { incarnationKey } from "../table/model-table.js";
import { Bookkeeping } from "./bookkeeping.js";
import { Callers, type Caller } from "./callers.js";
import { decide } from "./decide.js";
import { atOnce, blank } from "./decision.js";
import type { Action } from "./decision.js";
import { memoryReport } from "./memory/report.js";
import type { Declared, Life, LifecycleEvent, ManagerEvent, Reply } from "./protocol.js";
import { Readiness } from "./readiness.js";
import { RoomQueue } from "./room-queue.js";
import type { RoomQueueInput } from "./room-queue.js";
import { Sweeper } from "./sweeper.js";
import type { LoadOrder, Tasks } from "./tasks.js";

export interface ExecutorInput extends Omit<RoomQueueInput, "onIdle" | "now"> {
  /** The supervisor's, for messages. */
  readonly name: string;
  readonly tasks: Tasks;
  readonly clock: Clock;
  readonly random: () => number;
  readonly sweepIntervalMs: number;
  /** Shared with the next manager; what is removed here stays removed. */
  readonly declarations: Map<ModelId, Declared>;
  /** Sends to this manager, from outside its mailbox. */
  readonly send: (event: ManagerEvent) => void;
  /** Says what nobody who called can be told. */
  readonly warn: (message: string, error: unknown) => void;
  /** A request waits for a load that was under way. */
  readonly onJoined: (id: ModelId) => void;
}

/** While a load waits for room, times are looked at so often, however rarely models are swept. */
const WAITING_MS = 1_000;

/** After these nobody who waits for room has anything new to hope for. */
const CHANGES_NO_ROOM = new Set<ManagerEvent["type"]>([
  "model.need",
  "model.register",
  "check.done",
  "check.failed",
  "default.set",
  "ready.wait",
]);

export class Executor {
  readonly #input: ExecutorInput;
  readonly #books: Bookkeeping;
  readonly #room: RoomQueue;
  readonly #sweeper: Sweeper;
  readonly #callers: Callers;
  readonly #ready = new Readiness();
  /** Lives whose file is being looked at. */
  readonly #checks = new Map<string, Life>();
  readonly #closing: Reply<void>[] = [];
  /** Lives that become the default model when they are ready; one that fails leaves the default as it was. */
  readonly #nextDefaults = new Set<string>();

  constructor(input: ExecutorInput) {
    this.#input = input;
    const { clock, send } = input;
    this.#books = new Bookkeeping(input);
    this.#callers = new Callers(input.table, () => clock.now());
    this.#room = new RoomQueue(
      { ...input, now: () => clock.now(), onIdle: () => send({ type: "model.idle" }) },
      (id, timeoutMs) => this.#unload(id, "eviction", timeoutMs),
      (life) => this.#callers.wantLease(life),
    );
    this.#sweeper = new Sweeper(clock, () => send({ type: "sweep" }));
  }

  /** Declares the declared models, and loads the eager ones once nothing of an earlier manager's models is left. */
  boot(): void {
    const { table, writer, tasks, declarations, notify } = this.#input;
    for (const lost of [...table.entries()]) {
      writer.delete(lost.id);
      const { id: modelId, incarnation } = lost;
      if (!lost.declared) notify({ name: "model:lost", payload: { modelId, incarnation } });
    }
    writer.setDefault(undefined);
    for (const [id, { source, settings, isDefault }] of [...declarations]) {
      if (settings.residency.loadPolicy === "lazy") this.#decide({ type: "model.register", id, source, settings }, {});
      else writer.put(blank(id, source, settings, true));
      if (isDefault) writer.setDefault(id);
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
      const row = this.#input.table.get(id);
      if (row?.incarnation === 0) this.#decide({ type: "model.load", id, source: undefined, trigger: "eager" }, {});
    }
  }

  handle(event: ManagerEvent): void {
    switch (event.type) {
      case "model.register":
        this.#register(event);
        break;
      case "model.load":
        this.#decide(event, { ...event, info: event.reply });
        break;
      case "model.need":
        this.#decide(event, { lease: event.reply, ticket: event.ticket });
        break;
      case "model.unload":
        this.#decide(event, { done: event.reply });
        break;
      case "wait.withdraw":
        this.#ready.withdraw(event.ticket);
        for (const left of this.#callers.withdraw(event.ticket)) this.#decide({ ...left, type: "load.abandoned" }, {});
        break;
      case "default.set":
        if (this.#input.table.get(event.id) === undefined) event.reply.fail(new NotLoadedError(event.id));
        else {
          this.#setDefault(event.id);
          event.reply.ok();
        }
        break;
      case "budget.set":
        this.#room.setBudget(event.budget, () => {
          const { table, clock, maxWaitMs } = this.#input;
          event.reply.ok(memoryReport(table, clock.now(), maxWaitMs));
        });
        break;
      case "ready.wait":
        this.#ready.add(event.ticket, event.reply);
        break;
      case "manager.close":
        this.#close(event.timeoutMs, event.reply);
        break;
      case "memory.reserve":
        this.#room.reserve(event);
        break;
      case "memory.more":
        this.#room.more(event);
        break;
      case "model.idle":
        break; // whoever waits for room looks again below
      case "sweep":
        this.#sweep();
        break;
      case "tasks.lost":
        this.#resumeTasks();
        break;
      default: {
        const hadOrphans = this.#books.hasOrphans;
        this.#books.enter(event);
        this.#checks.delete(incarnationKey(event.id, event.incarnation));
        this.#decide(event, {});
        if (hadOrphans) this.#loadDeclared();
      }
    }
    if (!CHANGES_NO_ROOM.has(event.type)) this.#room.serve();
    if (!this.#books.hasOrphans) this.#ready.answer(this.#input.table);
    this.#answerClosing();
    this.#wantSweep();
  }

  #decide(event: LifecycleEvent, caller: Caller): void {
    const { table, writer, clock, random } = this.#input;
    const before = table.get(event.id);
    const incarnation = writer.peekIncarnation();
    const numbers = { incarnation, order: writer.nextOrder(), now: clock.now(), chance: random() };
    const { row, actions } = decide(before, event, numbers);
    if (row === undefined) {
      if (before?.declared) this.#input.declarations.delete(event.id);
      writer.delete(event.id);
      if (table.defaultId() === event.id) writer.setDefault(undefined);
      this.#forgetChecks(event.id);
    } else if (row !== before) {
      if (row.incarnation === incarnation) writer.takeIncarnation();
      writer.put(row);
      const key = incarnationKey(row.id, row.incarnation);
      if (row.status === "ready" && this.#nextDefaults.delete(key)) this.#setDefault(row.id);
    }
    if (event.type === "model.need" && before?.status === "loading") this.#input.onJoined(event.id);
    if (event.type === "check.failed" || event.type === "load.failed") this.#warnIfUnheard(before, event);
    for (const action of actions) this.#perform(action, event, caller);
  }

  /** A declared model turned out to be no good when nobody had asked for it yet. */
  #warnIfUnheard(row: Entry | undefined, fact: Extract<LifecycleEvent, { readonly error: unknown }>): void {
    if (row?.declared !== true) return;
    const isUnheard =
      fact.type === "check.failed" ? this.#callers.of("check", row).length === 0 : row.load?.trigger === "eager";
    if (isUnheard) this.#input.warn(`Declared model "${row.id}" cannot be loaded.`, fact.error);
  }

  #perform(action: Action, { id }: LifecycleEvent, caller: Caller): void {
    const { tasks, notify } = this.#input;
    switch (action.do) {
      case "answer":
        this.#callers.answer(id, caller, action.error);
        break;
      case "await":
        this.#callers.add(action.what, { id, incarnation: action.incarnation }, caller);
        break;
      case "settle":
        if (action.what === "load") this.#nextDefaults.delete(incarnationKey(id, action.incarnation));
        this.#callers.settle(action.what, { id, incarnation: action.incarnation }, action.error);
        break;
      case "follow":
        this.#callers.follow({ id, incarnation: action.from }, { id, incarnation: action.to });
        break;
      case "start-check":
        this.#startCheck(id);
        break;
      case "start-load":
        this.#startLoad(id);
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

  #register(event: Extract<ManagerEvent, { type: "model.register" }>): void {
    const { id, source, settings, makeDefault, ticket, reply } = event;
    const { declarations, table } = this.#input;
    const before = table.get(id);
    this.#decide(event, { info: reply, ticket });
    const row = table.get(id);
    if (row === before || row === undefined) return;
    // a restarted manager declares it again
    declarations.set(id, { source, settings, isDefault: false });
    if (makeDefault) this.#setDefault(id);
  }

  /** A restarted manager has the same default, if it is declared. */
  #setDefault(id: ModelId): void {
    const { declarations, writer } = this.#input;
    writer.setDefault(id);
    for (const [declared, { isDefault, ...made }] of declarations)
      if (isDefault !== (declared === id)) declarations.set(declared, { ...made, isDefault: declared === id });
  }

  #startCheck(id: ModelId): void {
    const row = this.#input.table.get(id);
    if (row === undefined) return;
    const { incarnation, source, settings } = row;
    this.#checks.set(incarnationKey(id, incarnation), { id, incarnation });
    this.#input.tasks.check({ id, incarnation, source, settings });
  }

  /** The model is known no more: who waits for the look at its file need not wait for its end. */
  #forgetChecks(id: ModelId): void {
    for (const life of [...this.#checks.values()]) {
      if (life.id !== id) continue;
      this.#checks.delete(incarnationKey(life.id, life.incarnation));
      this.#callers.settle("check", life, new LoadCancelledError(id));
    }
  }

  /** For those who wait for it by then. */
  #startLoad(id: ModelId): void {
    const row = this.#input.table.get(id);
    if (row === undefined) return;
    const { incarnation, source, settings } = row;
    const callers = this.#callers.of("load", row);
    if (callers.some(({ makeDefault }) => makeDefault)) this.#nextDefaults.add(incarnationKey(id, incarnation));
    const listeners = callers.flatMap(({ onProgress }) => onProgress ?? []);
    const onProgress: LoadOrder["onProgress"] =
      listeners.length === 0 ? undefined : (...progress) => listeners.forEach((listener) => listener(...progress));
    this.#books.begin({ id, incarnation });
    this.#input.tasks.load({ id, incarnation, source, settings, onProgress });
  }

  #unload(id: ModelId, reason: UnloadReason, timeoutMs: number): void {
    const force = reason === "close";
    this.#decide({ type: "model.unload", id, timeoutMs, force, forget: false, reason }, {});
  }

  /** Loads under way have failed (their tasks clean up and report by themselves); the rest is ordered again as it was. */
  #resumeTasks(): void {
    const { table, tasks, writer } = this.#input;
    // whoever waited for a next life has been told of the loss
    for (const row of [...table.entries()]) {
      if (!row.wanted) continue;
      this.#callers.drop("next", row);
      writer.put({ ...row, wanted: undefined });
    }
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
    for (const { id, incarnation } of [...this.#checks.values()]) {
      const row = table.get(id);
      if (row?.incarnation === incarnation && row.status === "registered") this.#startCheck(id);
    }
  }

  /** Unloads what nobody has used for its TTL. What is in use is looked at again later. */
  #sweep(): void {
    const { table, clock } = this.#input;
    const now = clock.now();
    for (const id of [...table.expiring()]) {
      // as it is now: a listener that was told of the one before may have taken this one
      const row = table.get(id);
      if (row?.status === "ready" && isExpired(idlenessOf(row), now)) this.#unload(id, "ttl", 0);
    }
  }

  #wantSweep(): void {
    const { table, sweepIntervalMs } = this.#input;
    if (this.#closing.length > 0) this.#sweeper.stop();
    else if (this.#room.isWaiting) this.#sweeper.want(Math.min(WAITING_MS, sweepIntervalMs), true);
    else this.#sweeper.want(table.expiring().size > 0 ? sweepIntervalMs : undefined);
  }

  #close(timeoutMs: number, reply: Reply<void>): void {
    this.#closing.push(reply);
    const closed = new ClosedError(this.#input.name);
    this.#ready.fail(closed);
    for (const row of [...this.#input.table.entries()]) {
      const { id, incarnation, status, wanted } = row;
      // nothing is loaded any more
      this.#callers.settle("next", { id, incarnation }, closed);
      if (wanted) this.#input.writer.put({ ...row, wanted: undefined });
      if (status === "registered" || status === "error") continue;
      this.#unload(id, "close", timeoutMs);
    }
  }

  #answerClosing(): void {
    if (this.#closing.length === 0 || !this.#books.isIdle) return;
    for (const reply of this.#closing.splice(0)) reply.ok();
  }
}
