import type { ModelMetrics } from "../../metrics/snapshot.js";
import type { ModelId } from "../../model.js";
import { Histogram } from "./histogram.js";

/** Bounds in seconds. A small file loads in a tenth of a second, a large one from a slow disk in minutes. */
const LOAD_BOUNDS = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
const QUEUE_BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const IDLE_BOUNDS = [1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400];

/** What is counted of one model, over all its lives. */
export class ModelCounts {
  readonly loads = { eager: 0, request: 0, call: 0 };
  readonly unloads = { caller: 0, ttl: 0, eviction: 0, close: 0, crash: 0 };
  readonly requests = { done: 0, aborted: 0, failed: 0 };
  readonly loadSeconds = new Histogram(LOAD_BOUNDS);
  readonly coldStartSeconds = new Histogram(LOAD_BOUNDS);
  readonly queueSeconds = new Histogram(QUEUE_BOUNDS);
  readonly evictionIdleSeconds = new Histogram(IDLE_BOUNDS);
  failedLoads = 0;
  cancelledLoads = 0;
  joinedLoads = 0;
  /** As far as it was looked at. */
  peakInFlight = 0;
  /** The life that is being loaded: tells a load that ends from a model that ends. */
  loading: number | undefined;
  /** How long it had been idle when the last unload began, which may be given up. */
  idleMs: number | undefined;

  snapshot(modelId: ModelId, now: Pick<ModelMetrics, "isReady" | "reservedBytes" | "inFlight">): ModelMetrics {
    return {
      modelId,
      ...now,
      loads: { ...this.loads },
      failedLoads: this.failedLoads,
      cancelledLoads: this.cancelledLoads,
      joinedLoads: this.joinedLoads,
      loadSeconds: this.loadSeconds.snapshot(),
      coldStartSeconds: this.coldStartSeconds.snapshot(),
      queueSeconds: this.queueSeconds.snapshot(),
      unloads: { ...this.unloads },
      evictionIdleSeconds: this.evictionIdleSeconds.snapshot(),
      requests: { ...this.requests },
      peakInFlight: this.peakInFlight,
    };
  }
}
