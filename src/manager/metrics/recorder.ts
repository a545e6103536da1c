import type { RequestOutcome } from "../../api.js";
import type { MetricsSnapshot } from "../../metrics/snapshot.js";
import type { Device, MemoryReport, ModelId } from "../../model.js";
import type { ModelTable } from "../../table/model-table.js";
import type { Notice } from "../decision.js";
import { bytesOn } from "../memory/claims.js";
import { ModelCounts } from "./model-counts.js";

/** Ids that are counted, unless more are known to the table. */
const MAX_MODELS = 1000;

/**
 * Counts what happens. It lives with the supervisor, so that a restart of the manager loses nothing. What a request costs
 * is a look-up and a few additions; leases are not counted here at all, but read where they are (ADR 0003).
 */
export class MetricsRecorder {
  readonly #table: ModelTable;
  /** The longest not loaded first. */
  readonly #models = new Map<ModelId, ModelCounts>();
  readonly #refusals = new Map<Device, number>();

  constructor(table: ModelTable) {
    this.#table = table;
  }

  /** Counts a fact about a model. Those about requests are counted by the methods below, since not all of them are told. */
  observe(notice: Notice): void {
    switch (notice.name) {
      case "model:registered":
      case "model:lost": {
        const { modelId } = notice.payload;
        this.#look(modelId, this.#of(modelId));
        break;
      }
      case "model:loading": {
        const { modelId, incarnation, trigger } = notice.payload;
        const counts = this.#of(modelId);
        counts.loads[trigger] += 1;
        counts.loading = incarnation;
        this.#models.delete(modelId);
        this.#models.set(modelId, counts);
        break;
      }
      case "model:ready": {
        const { modelId, loadMs } = notice.payload;
        const counts = this.#of(modelId);
        counts.loading = undefined;
        counts.loadSeconds.observe(loadMs);
        break;
      }
      case "model:unloading": {
        const { modelId, idleMs } = notice.payload;
        const counts = this.#of(modelId);
        // the last look at this life's peak: only calls of leases that are still out could raise it after this
        this.#look(modelId, counts);
        counts.idleMs = idleMs;
        break;
      }
      case "model:unloaded": {
        const { modelId, incarnation, reason } = notice.payload;
        const counts = this.#of(modelId);
        if (endsLoad(counts, incarnation)) counts.cancelledLoads += 1;
        else {
          counts.unloads[reason] += 1;
          if (reason === "eviction") counts.evictionIdleSeconds.observe(counts.idleMs);
        }
        break;
      }
      case "model:error": {
        const { modelId, incarnation, error } = notice.payload;
        const counts = this.#of(modelId);
        this.#look(modelId, counts);
        if (endsLoad(counts, incarnation)) counts.failedLoads += 1;
        else if (error.code === "backing_crashed") counts.unloads.crash += 1;
        break;
      }
      case "budget:refused": {
        const { device } = notice.payload;
        this.#refusals.set(device, (this.#refusals.get(device) ?? 0) + 1);
        break;
      }
      default:
    }
  }

  /** A call joined a load under way. */
  joined(modelId: ModelId): void {
    this.#of(modelId).joinedLoads += 1;
  }

  /** A request that had to wait for its model has it. */
  coldStart(modelId: ModelId, waitMs: number): void {
    this.#of(modelId).coldStartSeconds.observe(waitMs);
  }

  /** A request that had the model is over. `queueMs`: how long it waited for a slot, where that is known. */
  requestEnded(modelId: ModelId, outcome: RequestOutcome["outcome"], queueMs?: number): void {
    const counts = this.#of(modelId);
    counts.requests[outcome] += 1;
    counts.queueSeconds.observe(queueMs);
  }

  snapshot(memory: MemoryReport): MetricsSnapshot {
    return {
      models: [...this.#models].map(([id, counts]) => counts.snapshot(id, this.#look(id, counts))),
      devices: memory.devices.map((device) => ({ ...device, refusals: this.#refusals.get(device.device) ?? 0 })),
    };
  }

  #of(modelId: ModelId): ModelCounts {
    const known = this.#models.get(modelId);
    if (known !== undefined) return known;
    this.#forgetOldest();
    const counts = new ModelCounts();
    this.#models.set(modelId, counts);
    return counts;
  }

  /** Makes room for one more. */
  #forgetOldest(): void {
    for (const id of this.#models.keys()) {
      if (this.#models.size < MAX_MODELS) return;
      if (this.#table.get(id) === undefined) this.#models.delete(id);
    }
  }

  /**
   * Reads the leases that are out, and keeps their peak. Of every life that still holds memory: after a crash leases may be
   * out on one that has no row any more.
   */
  #look(modelId: ModelId, counts: ModelCounts) {
    let inFlight = 0;
    let reservedBytes = 0;
    for (const { modelId: owner, live, placement } of this.#table.reservations()) {
      if (owner !== modelId) continue;
      reservedBytes += bytesOn("total", placement);
      if (live === undefined) continue;
      inFlight += live.block.leases;
      counts.peakInFlight = Math.max(counts.peakInFlight, live.block.peakLeases);
    }
    const isReady = this.#table.get(modelId)?.live?.block.isReady ?? false;
    return { isReady, reservedBytes, inFlight };
  }
}

/** True if it was this load that has ended. */
function endsLoad(counts: ModelCounts, incarnation: number): boolean {
  if (counts.loading !== incarnation) return false;
  counts.loading = undefined;
  return true;
}
