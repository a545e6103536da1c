/** The domain's words: what a model is, where it may live, and what the public views of it look like. */

/** The caller's name for a model. 1 to 200 characters, no control characters, not starting with `@`. */
export type ModelId = string;

/**
 * Where the weights are. Of a split set, any part.
 *
 * - the path of a GGUF file, absolute or from the working directory
 * - `hf:user/repo:quant`, `hf:user/repo/file.gguf` or `hf:user/repo/file.gguf#revision`: a file of the hub
 * - an https URL
 */
export type ModelSource = string;

/** The source as it may be shown: a URL without user, query and fragment, which may be secrets. */
export function shownSource(source: ModelSource): string {
  const [, scheme, place] = /^\s*([a-z][a-z0-9+.-]*:\/\/)(?:[^/?#]*@)?([^?#]*)/i.exec(source) ?? [];
  return scheme === undefined || place === undefined ? source : `${scheme}${place}`;
}

/** What a model can be asked for. */
export type Capability = "generate" | "chat" | "embed" | "rank";

/**
 * `server`: `parallel` slots of `contextSize` tokens each advance together; requests queue for a slot. `direct`:
 * stateless calls on the model.
 */
export type Mode = "server" | "direct";

/**
 * Where a model is in its life. `registered`: declared, not loaded. `loading`: its id is claimed. `ready`: it serves
 * requests. `unloading`: it takes no more, and finishes those it has. `error`: its load failed, it died in the engine, or
 * its disposal did not end; `ModelInfo.error` says which.
 */
export type Status = "registered" | "loading" | "ready" | "unloading" | "error";

/** Who ended a model's life: `unload` (or the last caller of a load, by leaving), its `ttlMs`, a load that needed the room, or the end of the supervisor. */
export type UnloadReason = "caller" | "ttl" | "eviction" | "close";

/** `eager`: loaded from the start. `lazy`: loaded by the first request. */
export type LoadPolicy = "eager" | "lazy";

/** Why a model is loaded: declared as eager, first needed by a request, or asked for by `load`. */
export type LoadTrigger = "eager" | "request" | "call";

/** A pool of memory: `total` (one combined pool, only where the budget is one size), `ram`, or one GPU. */
export type Device = "total" | "ram" | `gpu:${number}`;

/** Bytes per device that a model needs or holds. */
export type Placement = Readonly<Partial<Record<Device, number>>>;

/** A size in bytes, as a number or with a unit (`KB`, `MB`, `GB` are powers of 1000; `KiB`, `MiB`, `GiB` of 1024). */
export type Size = number | `${number}${"KiB" | "MiB" | "GiB" | "KB" | "MB" | "GB"}`;

/**
 * How much memory the models may hold together.
 *
 * - `"unlimited"`: nothing is ever refused.
 * - a {@link Size}: one combined pool for RAM and GPUs, named `total` in refusals.
 * - `"auto"`: RAM 80 % of what this process may use (container limits count), each GPU its own memory, and never more
 *   than what is really free when a load is planned.
 * - a map: RAM and each GPU on its own; a GPU that the map does not list may hold nothing.
 * - `"edge"`: for small devices: 0 where the process may use at most 2 GiB, else half of it, as one pool.
 */
export type MemoryBudget =
  | "unlimited"
  | "auto"
  | "edge"
  | Size
  | {
      readonly ram?: Size | "auto" | "unlimited" | undefined;
      readonly gpu?: "auto" | "unlimited" | readonly (Size | "unlimited")[] | undefined;
    };

/** One memory pool of the machine, as the backend sees it now. */
export interface DeviceInfo {
  readonly device: "ram" | `gpu:${number}`;
  readonly name: string;
  /** What this process may use at most (container limits count). */
  readonly totalBytes: number;
  /** What is free now. File pages that the system can drop at any time count as free. */
  readonly freeBytes: number;
  /** True for a GPU that shares the RAM: its bytes are then counted in `ram`. */
  readonly unified?: boolean | undefined;
}

/** What went wrong, as plain data. */
export interface ErrorInfo {
  readonly name: string;
  readonly code: string;
  readonly message: string;
  readonly retryable: boolean;
}

/** How fast a model was in one layout when it was measured. */
export interface LayoutMeasurement {
  readonly contexts: number;
  readonly threadsPerContext: number;
  /** Of one stream, and of all slots together. */
  readonly singleTokensPerSecond: number;
  readonly fullTokensPerSecond: number;
}

/** How the engine runs the slots of a model, and why so. */
export interface SlotLayout {
  /** Contexts of the engine that the slots are spread over; each steps by itself. */
  readonly contexts: number;
  readonly threadsPerContext: number;
  /** Slots of a context that advance in one step when all of them decode. */
  readonly decodeWidth: number;
  /**
   * `options`: nothing was left to choose; `measured`: at this load; `remembered`: measured at an earlier load of the file;
   * `default`: not measured, since the engine was busy, the machine too slow, or measuring is switched off.
   */
  readonly chosenBy: "options" | "measured" | "remembered" | "default";
  /** What was compared. */
  readonly measurements: readonly LayoutMeasurement[];
}

/** The public view of one declared or resident model. Plain JSON, no handles. */
export interface ModelInfo {
  readonly id: ModelId;
  readonly status: Status;
  /** Unknown (`undefined`) until the file has been read. */
  readonly mode: Mode | undefined;
  readonly capabilities: readonly Capability[];
  /** A URL is shown without its query. */
  readonly source: ModelSource;
  /** Size of the model's files. */
  readonly sizeBytes: number | undefined;
  /**
   * Bytes per device that are reserved for this model; after the load, what the engine reports. Weights that other models
   * have as well are in the placement of each of them, and in {@link MemoryReport} once.
   */
  readonly placement: Placement;
  /** True when `placement` is what the engine reported after the load, false while it is an estimate. */
  readonly measured: boolean;
  /** Tokens per slot. */
  readonly contextSize: number | undefined;
  /** Slots (`server`), or calls that may run at once (`direct`). */
  readonly parallel: number | undefined;
  /** How the slots are run, while the model is loaded in `server` mode. */
  readonly layout?: SlotLayout;
  readonly loadPolicy: LoadPolicy;
  /** True if the model was declared, at the start or by `register`: it is kept, whatever its status. */
  readonly declared: boolean;
  /** Tells two lives of one id apart: a number that grows with every load and declaration. */
  readonly incarnation: number;
  /** Requests that hold the model now. */
  readonly leases: number;
  /** Requests that wait for a slot now. */
  readonly queued: number;
  /** Why the status is `error`. */
  readonly error?: ErrorInfo;
  /** Milliseconds since the epoch. */
  readonly loadedAt: number | undefined;
  /** Milliseconds since the epoch; moved by every acquire and release, by no read. */
  readonly lastUsedAt: number | undefined;
  /** When it is unloaded if nobody uses it before, milliseconds since the epoch; `undefined` without a TTL and while in use. */
  readonly expiresAt: number | undefined;
}

/** Memory of one device. */
export interface DeviceMemory {
  readonly device: Device;
  /** What the budget allows; `null` = unlimited. */
  readonly limitBytes: number | null;
  /** Claimed by loads under way, resident models, and models whose memory is not free yet; shared weights once. */
  readonly reservedBytes: number;
  /** The part of `reservedBytes` that the engine has reported after a load. */
  readonly measuredBytes: number;
  /** What a load could claim now; `null` = unlimited. */
  readonly availableBytes: number | null;
  /** What would be free besides, were all idle models unloaded that may be. */
  readonly evictableBytes: number;
}

/** Memory that an ended incarnation still holds: its disposal runs, hangs or has failed. */
export interface UnreleasedMemory {
  readonly modelId: ModelId;
  readonly incarnation: number;
  readonly placement: Placement;
}

/** What the models hold, per device, and what they may. Plain JSON. */
export interface MemoryReport {
  readonly devices: readonly DeviceMemory[];
  readonly unreleased: readonly UnreleasedMemory[];
}

/** What a load would need and whether it would be let in. Plain JSON. */
export interface LoadPlan {
  /** `evict`: with `overBudget: "evict-idle"`, when the models in `evict` have gone. */
  readonly outcome: "fits" | "evict" | "refuse";
  readonly mode: Mode;
  readonly capabilities: readonly Capability[];
  /** Bytes per device of the budget. */
  readonly placement: Placement;
  /** The first device that does not fit; absent when everything fits. */
  readonly device?: Device;
  /** The idle models that would be unloaded to make room. */
  readonly evict: readonly ModelId[];
  /** On `device`, or summed over all devices when everything fits. Weights that are in memory already are not required. */
  readonly requiredBytes: number;
  /** On `device`, or on the fullest device used when everything fits; `null` = unlimited. */
  readonly availableBytes: number | null;
}
