import type { DeviceInfo, MemoryBudget, ModelId } from "../model.js";
import { LifeState } from "./control-block.js";
import type { Entry, Reservation } from "./entry.js";

/** What every caller may do with the table: read it, synchronously, without asking the manager. */
export interface ModelTable {
  get(id: ModelId): Entry | undefined;
  entries(): Iterable<Entry>;
  defaultId(): ModelId | undefined;
  /** Ready models with a TTL. */
  expiring(): ReadonlySet<ModelId>;
  reservation(id: ModelId, incarnation: number): Reservation | undefined;
  reservations(): Iterable<Reservation>;
  /** How many reservations have been measured so far. */
  measuredCount(): number;
  /** The machine's memory pools, as last seen at the start, a load or an unload. */
  devices(): readonly DeviceInfo[];
  /** `measuredCount` when they were seen. */
  devicesAsOf(): number;
  /** What the models may hold. */
  budget(): MemoryBudget;
}

/** What only the manager holds. */
export interface TableWriter {
  /** Sets the row and opens or closes admission to match its status. */
  put(entry: Entry): Entry;
  delete(id: ModelId): void;
  setDefault(id: ModelId | undefined): void;
  setDevices(devices: readonly DeviceInfo[], asOf: number): void;
  setBudget(budget: MemoryBudget): void;
  /** The number of the next life; the same until it is taken. */
  peekIncarnation(): number;
  takeIncarnation(): void;
  /** Numbers the orders to unload. */
  nextOrder(): number;
  reserve(reservation: Reservation): void;
  unreserve(id: ModelId, incarnation: number): void;
}

/**
 * One table, two views: the reader cannot write, by type and at run time.
 * The writer's counter and the reservations outlive a restart of the manager, because the memory does.
 */
export function createModelTable(
  devices: readonly DeviceInfo[],
  memoryBudget: MemoryBudget,
): { table: ModelTable; writer: TableWriter } {
  const rows = new Map<ModelId, Entry>();
  const reserved = new Map<string, Reservation>();
  const expiring = new Set<ModelId>();
  let defaultId: ModelId | undefined;
  let seenDevices = devices;
  let seenAsOf = 0;
  let budget = memoryBudget;
  let incarnations = 0;
  let orders = 0;
  let measured = 0;

  const closeAdmission = (entry: Entry | undefined) => entry?.live?.block.moveTo(LifeState.CLOSED);

  return {
    table: {
      get: (id) => rows.get(id),
      entries: () => rows.values(),
      defaultId: () => defaultId,
      expiring: () => expiring,
      reservation: (id, incarnation) => reserved.get(incarnationKey(id, incarnation)),
      reservations: () => reserved.values(),
      measuredCount: () => measured,
      devices: () => seenDevices,
      devicesAsOf: () => seenAsOf,
      budget: () => budget,
    },
    writer: {
      put(entry) {
        const before = rows.get(entry.id);
        if (before?.live !== entry.live) closeAdmission(before);
        const row = Object.freeze({ ...entry });
        rows.set(entry.id, row);
        if (row.status === "ready" && row.settings.residency.ttlMs < Infinity) expiring.add(row.id);
        else expiring.delete(row.id);
        row.live?.block.moveTo(row.status === "ready" ? LifeState.READY : LifeState.CLOSED);
        return row;
      },
      delete(id) {
        closeAdmission(rows.get(id));
        rows.delete(id);
        expiring.delete(id);
      },
      setDefault(id) {
        defaultId = id;
      },
      setDevices(now, asOf) {
        seenDevices = now;
        seenAsOf = asOf;
      },
      setBudget(now) {
        budget = now;
      },
      peekIncarnation: () => incarnations + 1,
      takeIncarnation: () => void ++incarnations,
      nextOrder: () => ++orders,
      reserve(reservation) {
        // frozen all the way down: the public views show this object
        const placement = Object.freeze({ ...reservation.placement });
        const row = Object.freeze({ ...reservation, placement });
        measured = Math.max(measured, row.number);
        reserved.set(incarnationKey(reservation.modelId, reservation.incarnation), row);
      },
      unreserve(id, incarnation) {
        reserved.delete(incarnationKey(id, incarnation));
      },
    },
  };
}

/** `chat#3`: one life of one id; also in the names of its actors. */
export function incarnationKey(id: ModelId, incarnation: number): string {
  return `${id}#${incarnation}`;
}
