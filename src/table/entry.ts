import type { EngineOptions, ModelProfile, ResolvedModel } from "../backends/backend.js";
import type { ModelSupervisorError } from "../errors.js";
import { shownSource } from "../model.js";
import type {
  Capability,
  LoadPolicy,
  LoadTrigger,
  Mode,
  ModelId,
  ModelInfo,
  ModelSource,
  Placement,
  Status,
  UnloadReason,
} from "../model.js";
import { expiresAt, type Idleness } from "./expiry.js";
import type { LiveModel } from "./live-model.js";

/** What the caller asked for at declaration or load; kept, so that the model can be loaded again. */
export interface LoadSettings {
  readonly capabilities: readonly Capability[] | undefined;
  readonly mode: Mode | undefined;
  readonly engine: EngineOptions;
  readonly residency: Residency;
}

/** What went wrong with a model, one time after the other. */
export interface Failures {
  readonly count: number;
  /** Not to be tried before, milliseconds since the epoch. */
  readonly retryAt: number;
}

/** When a model is loaded, and when it may go. Every default is filled in. */
interface Residency {
  readonly loadPolicy: LoadPolicy;
  readonly ttlMs: number;
  readonly evictable: boolean;
  readonly evictionPriority: number;
  readonly warmUp: boolean;
}

/** The row of one model. Frozen and replaced, never changed: a reader that keeps one keeps a consistent one. */
export interface Entry {
  readonly id: ModelId;
  readonly status: Status;
  readonly source: ModelSource;
  readonly settings: LoadSettings;
  readonly declared: boolean;
  /** Tells two lives of one id apart; 0 before the first. */
  readonly incarnation: number;
  readonly model: ResolvedModel | undefined;
  readonly profile: ModelProfile | undefined;
  /** Set while the status is `ready` or `unloading`. */
  readonly live: LiveModel | undefined;
  readonly error: ModelSupervisorError | undefined;
  /** A request loads it: it is declared and lazy, or it went by its TTL or to make room. */
  readonly onDemand: boolean;
  /** Who waits for its next life, which begins when the memory of this one is free: requests, or somebody who loads it. */
  readonly wanted: "request" | "call" | undefined;
  /** Loads that failed one after the other, and lives that ended early in a crash. */
  readonly failures: Failures | undefined;
  /** Why the last load was begun, and when. */
  readonly load: { readonly trigger: LoadTrigger; readonly at: number } | undefined;
  readonly loadedAt: number | undefined;
  /** Set while the status is `unloading`: what was asked for. */
  readonly leaving: Leaving | undefined;
  /** In `error` and `registered`: whether what is left of the last life is being given back, or cannot be. */
  readonly disposal: "running" | "stuck" | undefined;
}

/** An unload under way. */
export interface Leaving {
  /** Tells this order from an earlier one, whose task may still have something to say. */
  readonly order: number;
  readonly reason: UnloadReason;
  /** How long requests may take to finish. */
  readonly timeoutMs: number;
  /** Abort them then, instead of giving up. */
  readonly force: boolean;
  /** Forget the declaration as well. */
  readonly forget: boolean;
}

/** The memory that one incarnation has claimed. It outlives the row where the memory does. */
export interface Reservation {
  readonly modelId: ModelId;
  readonly incarnation: number;
  readonly placement: Placement;
  /** Bytes of `placement.ram` that are a file mapping, which the system counts as free. */
  readonly mappedBytes: number;
  /** The part that is counted once, however many hold it. */
  readonly shared?: SharedPart | undefined;
  /** False while it is a claim of a load under way; true once the engine has reported what it holds. */
  readonly measured: boolean;
  /** How many reservations had been measured when this one was made or measured: tells what a look at the devices saw. */
  readonly number: number;
  /** The backing that holds the memory, once there is one. */
  readonly live: LiveModel | undefined;
  /** True once it has been said that this memory may never come back: nobody is to wait for it. */
  readonly stuck: boolean;
}

/** The part of a reservation that others with the same key hold as well: weights of one file. */
export interface SharedPart {
  readonly key: string;
  /** Part of the reservation's placement, not beside it. */
  readonly placement: Placement;
}

/** The public view of a row, without handles. */
export function infoOf(entry: Entry, reservation: Reservation | undefined): ModelInfo {
  const { profile } = entry;
  // after a crash the row has no backing any more, while leases may still be out
  const live = entry.live ?? reservation?.live;
  return {
    id: entry.id,
    status: entry.status,
    mode: profile?.mode,
    capabilities: profile?.capabilities ?? [],
    source: shownSource(entry.source),
    sizeBytes: entry.model?.sizeBytes,
    placement: reservation?.placement ?? {},
    measured: reservation?.measured ?? false,
    contextSize: profile?.contextSize,
    parallel: profile?.parallel,
    ...(live?.backing.layout && { layout: live.backing.layout }),
    loadPolicy: entry.settings.residency.loadPolicy,
    declared: entry.declared,
    incarnation: entry.incarnation,
    leases: live?.block.leases ?? 0,
    queued: live?.queued() ?? 0,
    ...(entry.error && { error: errorInfo(entry.error) }),
    loadedAt: entry.loadedAt,
    lastUsedAt: live?.block.lastUsedAt,
    expiresAt: entry.status === "ready" ? expiresAt(idlenessOf(entry)) : undefined,
  };
}

/** What the TTL of a model goes by. */
export function idlenessOf({ settings, loadedAt = 0, live }: Entry): Idleness {
  const { ttlMs } = settings.residency;
  return { ttlMs, loadedAt, lastUsedAt: live?.block.lastUsedAt, leases: live?.block.leases ?? 0 };
}

function errorInfo({ name, code, message, retryable }: ModelSupervisorError) {
  return { name, code, message, retryable };
}
