/** The words of `metrics()`. Plain JSON, made anew for each call. */
import type { DeviceMemory, LoadTrigger, ModelId, UnloadReason } from "../model.js";

/** How often something took how long. */
export interface SecondsHistogram {
  /** How many took `upTo` seconds or less; each of them counts in the later buckets as well. */
  readonly buckets: readonly { readonly upTo: number; readonly count: number }[];
  /** Seconds of all together. */
  readonly sum: number;
  /** How many there were, however long. */
  readonly count: number;
}

/** The numbers of one model, over all lives of its id. */
export interface ModelMetrics {
  readonly modelId: ModelId;
  /** Whether it takes requests now. */
  readonly isReady: boolean;
  /** What it needs of memory now, summed over all devices, with what it shares with others. */
  readonly reservedBytes: number;
  /** Loads that were begun, by what they were for. */
  readonly loads: Readonly<Record<LoadTrigger, number>>;
  /** Loads that ended with an error, refusals of memory among them. */
  readonly failedLoads: number;
  /** Loads that an unload, a close or their last caller ended. */
  readonly cancelledLoads: number;
  /** Calls that joined a load under way instead of beginning one. */
  readonly joinedLoads: number;
  /** How long loads took that made the model ready, waits for room included. */
  readonly loadSeconds: SecondsHistogram;
  /** How long requests and `acquire` waited that had to wait for their model, and got it. */
  readonly coldStartSeconds: SecondsHistogram;
  /** How long requests waited for a slot. Of generations and chats that came to their end. */
  readonly queueSeconds: SecondsHistogram;
  /** Ends of lives that had been ready, by reason. What a restarted manager ends is not counted. */
  readonly unloads: Readonly<Record<UnloadReason | "crash", number>>;
  /** How long the model had been idle when it was evicted. */
  readonly evictionIdleSeconds: SecondsHistogram;
  /** Requests that are over, those among them that waited for the model in vain; not those that were refused at once. `aborted`: by their caller, their consumer, a time limit or an unload. */
  readonly requests: Readonly<Record<"done" | "aborted" | "failed", number>>;
  /** Requests and leases that hold the model now. */
  readonly inFlight: number;
  /** The most that have held it at the same time. */
  readonly peakInFlight: number;
}

/** The memory of one device, as {@link DeviceMemory} has it, and the loads that it was too small for. */
export interface DeviceMetrics extends DeviceMemory {
  readonly refusals: number;
}

/** What has happened since the supervisor was started, restarts of its manager included. */
export interface MetricsSnapshot {
  /** The longest not loaded first. Of models that are not known any more, the last are kept: 1,000 ids in all. */
  readonly models: readonly ModelMetrics[];
  readonly devices: readonly DeviceMetrics[];
}
