import fc from "fast-check";
import { SimulatedClock } from "xstate";
import type { Clock, Lease, MemoryBudget, ModelDeclaration, ModelManager, ModelOptions } from "../../../src/index.js";
import { isModelSupervisorError } from "../../../src/index.js";
import type { Backing } from "../../../src/backends/backend.js";
import type { ManagerEvent } from "../../../src/manager/protocol.js";
import type { LiveModel } from "../../../src/table/live-model.js";
import { FakeBackend } from "../../../src/testing/index.js";
import type { FakeModel, Gate } from "../../../src/testing/index.js";
import type { CodeUnderTest } from "./code-under-test.js";
import type { OtherThread } from "./other-thread.js";

const UNIT = 1e9;
export const IDS = ["a", "b", "c", "d", "e"] as const;
/** Needs more than there ever is. */
export const HUGE = "huge";
export type Id = (typeof IDS)[number] | typeof HUGE;
export const STEPS = ["resolve", "start", "generate", "token", "dispose"] as const;

const E_ANSWER = Array.from({ length: 12 }, () => "x".repeat(10_000)).join(" ");

/** Two of them fit together, mostly. "e" speaks so much that a stream which nobody reads is paused. */
const MODELS: Record<Id, FakeModel> = {
  a: { ramBytes: 1 * UNIT, gpuWeightsBytes: 1 * UNIT },
  b: { ramBytes: 3 * UNIT },
  c: { ramBytes: 1 * UNIT, gpuWeightsBytes: 2 * UNIT, gpuContextBytes: 1 * UNIT },
  d: { ramBytes: 4 * UNIT, gpuWeightsBytes: 2 * UNIT },
  e: {
    ramBytes: 2 * UNIT,
    measured: { ramBytes: 1 * UNIT },
    reply: E_ANSWER,
  },
  [HUGE]: { ramBytes: 20 * UNIT },
};

/** What a world is like from its beginning. */
const optionsOfModel = fc.record({
  declared: fc.constantFrom("eager" as const, "lazy" as const, "lazy" as const, "lazy" as const, "no" as const),
  ttlMs: fc.constantFrom(undefined, undefined, 50, 5_000),
  evictable: fc.constantFrom(true, true, true, false),
  evictionPriority: fc.constantFrom(0, 0, 1, -1),
  warmUp: fc.constantFrom(false, false, false, true),
});
export const plans = fc.record({
  overBudget: fc.constantFrom("evict-idle" as const, "evict-idle" as const, "evict-idle" as const, "refuse" as const),
  maxWaitMs: fc.constantFrom(0, 100, 2_000, 30_000),
  sweepIntervalMs: fc.constantFrom(10, 1_000),
  defaultTtlMs: fc.constantFrom(Infinity, Infinity, 500),
  pools: fc.constantFrom("total" as const, "devices" as const),
  /** Steps of the engine that wait for the test. */
  held: fc.subarray([...STEPS], { maxLength: 2 }),
  /** The hard case: an engine that does not hear its aborts. */
  ignoreAbort: fc.boolean(),
  models: fc.record({
    a: optionsOfModel,
    b: optionsOfModel,
    c: optionsOfModel,
    d: optionsOfModel,
    e: optionsOfModel,
    [HUGE]: optionsOfModel,
  }),
  ending: fc.constantFrom("quiet" as const, "close" as const, "close-first" as const),
});
export type Plan = typeof plans extends fc.Arbitrary<infer P> ? P : never;

/** One backing that was started, from the model's point of view. */
export interface Life {
  readonly modelId: string;
  readonly incarnation: number;
  readonly backing: Backing & { readonly hasEnded?: boolean };
  /** Once the manager has it. */
  live?: LiveModel;
  isDisposalOrdered: boolean;
  disposals: number;
  disposalFailed: boolean;
  /** It has been said that it may never be disposed. */
  isStuck: boolean;
  /** Its manager has failed. */
  isOrphan: boolean;
  /** Its requests were cut off: by force, a close, a crash or the end of the manager. */
  forced: boolean;
  /** Who listens for it to fall idle. */
  listeners: number;
}

export interface HeldLease {
  readonly lease: Lease;
  nativeTaken: boolean;
}

/** A call that has not been answered yet, and how its caller may leave. */
export interface Call {
  readonly label: string;
  /** The model that it waits for. */
  readonly waitsFor: string | undefined;
  /** Absent where the call takes no signal. */
  readonly controller: AbortController | undefined;
  isSettled: boolean;
}

/** Timers are counted, so that one that is left behind is seen. */
class CountingClock implements Clock {
  readonly #clock = new SimulatedClock();
  readonly pending = new Set<unknown>();
  now = () => this.#clock.now();
  setTimeout = (callback: () => void, delayMs: number) => {
    const handle: unknown = this.#clock.setTimeout(() => {
      this.pending.delete(handle);
      callback();
    }, delayMs);
    this.pending.add(handle);
    return handle;
  };
  clearTimeout = (handle: unknown) => {
    this.pending.delete(handle);
    if (typeof handle === "number") this.#clock.clearTimeout(handle);
  };
  increment = (ms: number) => this.#clock.increment(ms);
}

/** No step gives so much to do; behind that there is no end. */
const MOST_EVENTS = 2_000;

/** The real tree on the fake backend, and all that a walk has to know of it to judge it. */
export class World {
  readonly plan: Plan;
  readonly code: CodeUnderTest;
  readonly clock = new CountingClock();
  readonly backend = new FakeBackend({ models: MODELS, ramBytes: 16 * UNIT, gpuBytes: [16 * UNIT] });
  readonly devices = this.backend.deviceList;
  readonly gates: Record<string, Gate> = {};
  readonly lives: Life[] = [];
  readonly leases: HeldLease[] = [];
  readonly threads: OtherThread[] = [];
  readonly calls: Call[] = [];
  /** Why callers left: they may be told so. */
  readonly reasons = new Set<unknown>();
  readonly violations: string[] = [];
  /** What is over its limit since the limit was lowered; it may only become less. */
  readonly overhang = new Map<string, number>();
  /** When a life was first seen that had outlived its TTL. */
  readonly overdueSince = new Map<string, number>();
  /** Lives whose load was begun for a request. */
  readonly loadsForRequests = new Set<string>();
  readonly loadsSince = new Map<string, number>();
  /** Also of loads that nobody wants any more: an engine need not hear its aborts. */
  loadsInEngine = 0;
  /** What the manager was told since the last step. */
  eventsInTurn = 0;
  /** The part of the tree that fails when it is next used. */
  nextToBreak: "manager" | "tasks" | undefined;
  isEnding = false;
  models!: ModelManager;
  readonly #restore: (() => void)[] = [];

  constructor(plan: Plan, code: CodeUnderTest) {
    this.plan = plan;
    this.code = code;
    for (const step of plan.held)
      this.gates[step] = this.backend.hold(step, undefined, { ignoreAbort: plan.ignoreAbort });
    this.#watchEngine();
    this.#watchManager();
  }

  static count = 0;

  async start(): Promise<void> {
    const { overBudget, maxWaitMs, sweepIntervalMs, defaultTtlMs } = this.plan;
    this.models = await this.code.ModelSupervisor.start({
      name: `walk-${++World.count}`,
      backend: this.backend,
      clock: this.clock,
      logger: { warn: () => undefined },
      memoryBudget: this.budget(10),
      overBudget,
      maxWaitMs,
      sweepIntervalMs,
      defaultTtlMs,
      models: [...IDS, HUGE as Id].flatMap((id): ModelDeclaration[] => {
        const { declared } = this.plan.models[id];
        return declared === "no" ? [] : [{ id, source: id, loadPolicy: declared, ...this.optionsOf(id) }];
      }),
    });
    const now = this.clock.now();
    for (const { id, status, incarnation } of this.models.list())
      if (status === "loading") this.loadsSince.set(`${id}#${incarnation}`, now);
    this.models.on("model:loading", ({ modelId, incarnation, trigger }) => {
      this.loadsSince.set(`${modelId}#${incarnation}`, this.clock.now());
      if (trigger === "request") this.loadsForRequests.add(`${modelId}#${incarnation}`);
    });
    this.models.on("model:unloading", (event) => this.#judgeUnload(event));
  }

  end(): void {
    for (const restore of this.#restore) restore();
  }

  optionsOf(id: Id): ModelOptions {
    const { declared: _, ...options } = this.plan.models[id];
    return options;
  }

  /** `units`: 10 let two or three models in. */
  budget(units: number): MemoryBudget {
    if (this.plan.pools === "total") return units * UNIT;
    return { ram: Math.ceil(units * 0.7) * UNIT, gpu: [Math.ceil(units * 0.5) * UNIT] };
  }

  answerOf(id: string): string {
    return id === "e" ? E_ANSWER : "one two three four five six seven eight";
  }

  /** The devices cannot be told for a while. */
  toggleDevices(): void {
    const { backend, devices } = this;
    backend.deviceList = backend.deviceList === devices ? new Error("the devices cannot be told") : devices;
  }

  violated(what: string): void {
    this.violations.push(what);
  }

  /** Follows a call to its end, which is a value, a typed error, or the caller's own reason. */
  call<T>(
    label: string,
    waitsFor: string | undefined,
    begin: (signal: AbortSignal) => Promise<T>,
    then?: (value: T) => void,
  ): void {
    const controller = new AbortController();
    const call = { label, waitsFor, controller, isSettled: false };
    this.calls.push(call); // before it begins: it may wait already when the manager is asked
    this.#follow(call, begin(controller.signal), then);
  }

  /** The same for a call that nobody can leave. */
  order(label: string, begun: Promise<unknown>): void {
    const call = { label, waitsFor: undefined, controller: undefined, isSettled: false };
    this.calls.push(call);
    this.#follow(call, begun);
  }

  #follow<T>(call: Call, promise: Promise<T>, then?: (value: T) => void): void {
    promise.then(
      (value) => {
        call.isSettled = true;
        then?.(value);
      },
      (error: unknown) => {
        call.isSettled = true;
        if (!this.#isFair(error)) this.violated(`${call.label} was rejected with ${String(error)}`);
      },
    );
  }

  #isFair(error: unknown): boolean {
    if (error instanceof AggregateError) return error.errors.every((one) => isModelSupervisorError(one));
    return isModelSupervisorError(error) || this.reasons.has(error);
  }

  #watchEngine(): void {
    const { backend, lives } = this;
    const enter = async <T>(work: Promise<T>): Promise<T> => {
      this.loadsInEngine++;
      try {
        return await work;
      } finally {
        this.loadsInEngine--;
      }
    };
    const resolve = backend.resolve.bind(backend);
    backend.resolve = (source, options, signal) => enter(resolve(source, options, signal));
    const start = backend.start.bind(backend);
    backend.start = async (spec, context) => {
      const backing = await enter(start(spec, context));
      const { modelId, incarnation } = spec;
      const life: Life = {
        modelId,
        incarnation,
        backing,
        isDisposalOrdered: false,
        disposals: 0,
        isStuck: false,
        isOrphan: false,
        disposalFailed: false,
        forced: false,
        listeners: 0,
      };
      lives.push(life);
      const dispose = backing.dispose.bind(backing);
      let disposal: Promise<void> | undefined;
      backing.dispose = () => {
        if (disposal === undefined) {
          this.#judgeDisposal(life);
          life.isDisposalOrdered = true;
          disposal = dispose();
          disposal.then(
            () => life.disposals++,
            () => (life.disposalFailed = true),
          );
        }
        return disposal;
      };
      return backing;
    };
  }

  #watchManager(): void {
    const { Executor, temporaryChildrenMachine } = this.code;
    const { boot, handle } = Executor.prototype;
    const beforeBoot = () => {
      for (const life of this.lives) life.isOrphan = true;
    };
    Executor.prototype.boot = function watched(this: InstanceType<typeof Executor>) {
      beforeBoot();
      boot.call(this);
    };
    const beforeEvent = (event: ManagerEvent): boolean => {
      if (++this.eventsInTurn > MOST_EVENTS) {
        this.violated(`the manager never comes to rest, the last event was ${event.type}`);
        return false;
      }
      if (this.nextToBreak === "manager") this.#break();
      // what a lowered limit finds in use may stay
      if (event.type === "budget.set")
        for (const { device, reservedBytes } of this.models.memory().devices) this.overhang.set(device, reservedBytes);
      if (event.type === "load.done") this.#adopt(event.live);
      if (event.type === "dispose.failed")
        for (const life of this.lives) life.isStuck ||= isOf(life, { ...event, modelId: event.id });
      return true;
    };
    Executor.prototype.handle = function watched(this: InstanceType<typeof Executor>, event: ManagerEvent) {
      if (beforeEvent(event)) handle.call(this, event);
    };
    const { transition } = temporaryChildrenMachine;
    const beforeStart = () => {
      if (this.nextToBreak === "tasks") this.#break();
    };
    temporaryChildrenMachine.transition = function watched(this: typeof temporaryChildrenMachine, ...args) {
      if (args[1].type === "child.start") beforeStart();
      return transition.apply(this, args);
    };
    this.#restore.push(() => {
      Executor.prototype.boot = boot;
      Executor.prototype.handle = handle;
      temporaryChildrenMachine.transition = transition;
    });
  }

  #break(): never {
    this.nextToBreak = undefined;
    throw new Error("a bug");
  }

  #adopt(live: LiveModel): void {
    const life = this.lives.find(({ backing }) => backing === live.backing);
    if (life === undefined) return this.violated("a load was done with a backing that nobody started");
    if (life.live !== undefined) return;
    life.live = live;
    const abort = live.abortRequests.bind(live);
    live.abortRequests = (reason) => {
      life.forced = true;
      abort(reason);
    };
    const onUnused = live.onUnused.bind(live);
    live.onUnused = (listener) => {
      const stop = onUnused(listener);
      life.listeners++;
      let isStopped = false;
      return () => {
        if (!isStopped) life.listeners--;
        isStopped = true;
        stop();
      };
    };
  }

  /** Called in the moment in which the disposal is ordered. */
  #judgeDisposal({ modelId, incarnation, live, forced }: Life): void {
    const name = `${modelId}#${incarnation}`;
    if (live !== undefined && live.block.leases !== 0)
      this.violated(`${name} was disposed while its count of leases was ${live.block.leases}`);
    if (this.threads.some((thread) => thread.live === live && thread.state === "holds"))
      this.violated(`${name} was disposed while another thread held it`);
    for (const { lease, nativeTaken } of this.leases) {
      if (lease.modelId !== modelId || lease.incarnation !== incarnation) continue;
      if (nativeTaken || !forced) this.violated(`${name} was disposed while a caller held a lease`);
    }
  }

  /** Called in the moment in which admission is closed. */
  #judgeUnload({
    modelId,
    incarnation,
    reason,
  }: {
    readonly modelId: string;
    readonly incarnation: number;
    readonly reason: string;
  }): void {
    if (reason !== "eviction" && reason !== "ttl") return;
    const name = `${modelId}#${incarnation}`;
    const life = this.lives.find((one) => isOf(one, { modelId, incarnation }));
    const leases = life?.live?.block.leases ?? 0;
    if (reason === "ttl") {
      if (leases > 0) this.violated(`${name} went by its TTL with ${leases} leases out`);
      return;
    }
    const id = IDS.find((one) => one === modelId);
    if (this.plan.overBudget === "refuse") this.violated(`${name} was evicted, although nothing ever may be`);
    if (id !== undefined && !this.plan.models[id].evictable) this.violated(`${name} was evicted and is not evictable`);
    const now = this.clock.now();
    const loadedAt = this.models.info(modelId)?.loadedAt ?? -Infinity;
    const isNew = life?.live?.block.lastUsedAt === undefined && now - loadedAt < this.plan.maxWaitMs;
    if (leases === 0 && !isNew) return;
    const hasWaited = this.models
      .list()
      .some(
        (row) =>
          row.status === "loading" &&
          now - (this.loadsSince.get(`${row.id}#${row.incarnation}`) ?? now) >= this.plan.maxWaitMs,
      );
    if (!hasWaited) this.violated(`${name} was chosen to go before anybody had waited, with ${leases} leases out`);
  }
}

function isOf(
  life: Life,
  { modelId, incarnation }: { readonly modelId: string; readonly incarnation: number },
): boolean {
  return life.modelId === modelId && life.incarnation === incarnation;
}
