/** Lets loads in: at once, when room has been made for them, or not at all. Runs inside the manager's mailbox only. */
import type { ModelSupervisorOptions } from "../api.js";
import { InsufficientMemoryError, LoadCancelledError } from "../errors.js";
import type { MemoryBudget, ModelId } from "../model.js";
import type { LiveModel } from "../table/live-model.js";
import type { ModelTable, TableWriter } from "../table/model-table.js";
import type { Notice } from "./decision.js";
import { resolveBudget } from "./memory/budget.js";
import {
  nextVictim,
  planRoom,
  refusalOf,
  victimsOverLimit,
  type Ahead,
  type RoomInput,
  type Tenant,
} from "./memory/room.js";
import { tenantsOf } from "./memory/tenants.js";
import type { Life, MoreRoomRequest, ReserveRequest } from "./protocol.js";

export interface RoomQueueInput {
  readonly table: ModelTable;
  readonly writer: TableWriter;
  readonly overBudget: NonNullable<ModelSupervisorOptions["overBudget"]>;
  readonly maxWaitMs: number;
  readonly now: () => number;
  readonly notify: (notice: Notice) => void;
  /** Called outside the mailbox when a model that is waited for has fallen idle. */
  readonly onIdle: () => void;
}

/** Unloads an idle model, or one in use after `timeoutMs` at most. */
export type Evict = (id: ModelId, timeoutMs: number) => void;

/** Whether a request waits for this load: then it may wait for models in use. */
export type IsAwaited = (life: Life) => boolean;

/** So many loads in line have victims looked for; those behind them are let in where they fit as it is. */
const PLANNED = 8;

/** A load that has not been let in yet. */
interface Claimant {
  readonly request: ReserveRequest;
  since: number;
  readonly evictable: boolean;
}

/** Somebody who waits until models that were unloaded for it have gone. */
interface Departure {
  readonly lives: readonly Life[];
  readonly onGone: () => void;
}

export class RoomQueue {
  readonly #input: RoomQueueInput;
  readonly #evict: Evict;
  readonly #isAwaited: IsAwaited;
  /** In the order in which they came. */
  #claimants: Claimant[] = [];
  #departures: Departure[] = [];
  /** Models in use that somebody waits for, and how to stop listening. */
  readonly #watches = new Map<LiveModel, () => void>();

  constructor(input: RoomQueueInput, evict: Evict, isAwaited: IsAwaited) {
    this.#input = input;
    this.#evict = evict;
    this.#isAwaited = isAwaited;
  }

  get isWaiting(): boolean {
    return this.#claimants.length > 0;
  }

  /** Check and claim in one step, so that of two loads racing for the last bytes exactly one gets them. */
  reserve(request: ReserveRequest): void {
    const { table, writer, now } = this.#input;
    writer.setDevices(request.devices, request.asOf);
    const row = table.get(request.id);
    const evictable = row?.settings.residency.evictable ?? true;
    this.#claimants.push({ request, since: now(), evictable });
  }

  /** The engine had no room although the plan said that there is: one more model goes that has some of what was full. */
  more({ id, incarnation, error, reply }: MoreRoomRequest): void {
    if (!this.#isLoading({ id, incarnation })) return reply.fail(new LoadCancelledError(id));
    const victims = this.#mayEvict ? nextVictim(error.device, this.#tenants()) : undefined;
    if (victims === undefined) return reply.fail(error);
    this.#departures.push({ lives: this.#evictAll(victims), onGone: () => reply.ok() });
  }

  /** Calls `onGone` when the idle models that are over the budget have gone; what is in use stays. */
  setBudget(budget: MemoryBudget, onGone: () => void): void {
    const { table, writer } = this.#input;
    writer.setBudget(budget);
    const pools = resolveBudget(budget, table.devices());
    const victims = this.#mayEvict ? victimsOverLimit(pools, this.#tenants()) : [];
    this.#departures.push({ lives: this.#evictAll(victims), onGone });
  }

  /** Looks at everybody who waits, first come first. Called after whatever may have changed something for them. */
  serve(): void {
    const stay: Claimant[] = [];
    const ahead: Ahead[] = [];
    for (const claimant of this.#claimants) {
      const waitsFor = this.#serve(claimant, ahead);
      if (waitsFor === undefined) continue;
      stay.push(claimant);
      const { placement, shared } = claimant.request;
      ahead.push({ placement, shared, evictable: claimant.evictable, waitsFor });
    }
    this.#claimants = stay;
    const waiting = this.#departures.filter(({ lives }) => lives.some((life) => this.#isLeaving(life)));
    const gone = this.#departures.filter((departure) => !waiting.includes(departure));
    this.#departures = waiting;
    for (const { onGone } of gone) onGone();
    this.#watchBusy();
  }

  /** The models in use that it waits for; `undefined` once it has been answered. `ahead`: who came before and waits still. */
  #serve(claimant: Claimant, ahead: readonly Ahead[]): readonly Tenant[] | undefined {
    const { request } = claimant;
    const { table, now, maxWaitMs } = this.#input;
    if (!this.#isLoading(request)) {
      request.reply.fail(new LoadCancelledError(request.id));
      return undefined;
    }
    const isPatient = table.get(request.id)?.load?.trigger === "request" || this.#isAwaited(request);
    // a clock that was set back must not make it wait for longer
    claimant.since = Math.min(claimant.since, now());
    const waitedMs = now() - claimant.since;
    const isFar = isPatient && ahead.length >= PLANNED && waitedMs < 2 * maxWaitMs;
    const input = this.#roomFor(claimant, ahead);
    const plan = planRoom(input, this.#mayEvict && !isFar);
    if (isFar && plan.outcome !== "fits") return [];
    switch (plan.outcome) {
      case "fits":
        this.#grant(request);
        return undefined;
      case "leaving":
        if (!isPatient && !this.#mayEvict) break;
        // a disposal ends in its time, but the requests of somebody else's unload may go on for ever
        if (waitedMs >= 2 * maxWaitMs && input.tenants.some(({ fate, isInUse }) => fate === "leaves" && isInUse)) break;
        return [];
      case "evict":
        this.#evictAll(plan.victims);
        return [];
      case "busy":
        if (!isPatient || waitedMs >= 2 * maxWaitMs) break;
        // they have had their time: what comes for them now waits, until this load has been served
        if (waitedMs >= maxWaitMs) this.#evictAll(plan.victims, maxWaitMs);
        return plan.victims;
      case "refuse":
        break;
    }
    this.#refuse(request, input);
    return undefined;
  }

  #grant({ id, incarnation, model, profile, placement, shared, estimate, reply }: ReserveRequest): void {
    const { table, writer } = this.#input;
    const row = table.get(id);
    if (row) writer.put({ ...row, model, profile });
    writer.reserve({
      modelId: id,
      incarnation,
      placement,
      shared,
      mappedBytes: estimate.mappedBytes,
      measured: false,
      number: table.measuredCount(),
      live: undefined,
      stuck: false,
    });
    reply.ok();
  }

  #refuse({ id: modelId, reply }: ReserveRequest, input: RoomInput): void {
    const facts = { modelId, ...refusalOf(input) };
    this.#input.notify({ name: "budget:refused", payload: facts });
    reply.fail(new InsufficientMemoryError(facts));
  }

  #roomFor({ request: { placement, shared } }: Claimant, ahead: readonly Ahead[]): RoomInput {
    const { table } = this.#input;
    return {
      placement,
      shared,
      pools: resolveBudget(table.budget(), table.devices()),
      tenants: this.#tenants(),
      ahead,
    };
  }

  #tenants(): Tenant[] {
    const { table, now, maxWaitMs } = this.#input;
    return tenantsOf(table, now(), maxWaitMs, table.devicesAsOf());
  }

  get #mayEvict(): boolean {
    return this.#input.overBudget === "evict-idle";
  }

  #evictAll(victims: readonly Tenant[], timeoutMs = 0): Life[] {
    return victims.flatMap(({ modelId: id, incarnation, fate }) => {
      // a listener that was told of the victim before may have taken this one: then the plan is drawn again
      if (fate === "idle" && !this.#isIdle({ id, incarnation })) return [];
      this.#evict(id, fate === "idle" ? 0 : timeoutMs);
      return [{ id, incarnation }];
    });
  }

  #isIdle({ id, incarnation }: Life): boolean {
    return this.#tenants().some(
      (tenant) => tenant.modelId === id && tenant.incarnation === incarnation && tenant.fate === "idle",
    );
  }

  #isLoading({ id, incarnation }: Life): boolean {
    const row = this.#input.table.get(id);
    return row?.incarnation === incarnation && row.status === "loading";
  }

  /** False once its memory is free, or it has become ready again, or is stuck. */
  #isLeaving({ id, incarnation }: Life): boolean {
    const { table } = this.#input;
    const row = table.get(id);
    const isStill = row?.incarnation === incarnation && row.status !== "unloading" && row.disposal !== "running";
    return table.reservation(id, incarnation)?.stuck === false && !isStill;
  }

  /** While somebody waits, the models in use tell when they fall idle; else requests cost nobody an event. */
  #watchBusy(): void {
    const { table, onIdle } = this.#input;
    const busy = new Set<LiveModel>();
    if (this.isWaiting) {
      for (const { modelId, fate, isReady } of this.#tenants()) {
        const live = fate === "busy" && isReady ? table.get(modelId)?.live : undefined;
        if (live) busy.add(live);
      }
    }
    for (const [live, stop] of this.#watches) {
      if (busy.has(live)) continue;
      this.#watches.delete(live);
      stop();
    }
    for (const live of busy) if (!this.#watches.has(live)) this.#watches.set(live, live.watchIdle(onIdle));
  }
}
