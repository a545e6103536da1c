/** What the manager's mailbox carries: commands from callers and facts from tasks. Lifecycle only, never a request. */
import type { LoadProgress } from "../api.js";
import type { BackingExit, Estimate, ModelProfile, ResolvedModel } from "../backends/backend.js";
import type { InsufficientMemoryError, ModelSupervisorError } from "../errors.js";
import type {
  DeviceInfo,
  MemoryBudget,
  MemoryReport,
  ModelId,
  ModelInfo,
  ModelSource,
  Placement,
  UnloadReason,
} from "../model.js";
import type { Entry, LoadSettings, SharedPart } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";
import type { Handover } from "./handover.js";

/** How a command is answered; called once, as the last thing. */
export interface Reply<T> {
  ok(value: T): void;
  fail(error: unknown): void;
}

/** One life of one model. */
export interface Life {
  readonly id: ModelId;
  readonly incarnation: number;
}

/** What a model is made from. */
interface Made {
  readonly source: ModelSource;
  readonly settings: LoadSettings;
}

/** A model that is known whether it is loaded or not. */
export interface Declared extends Made {
  readonly isDefault: boolean;
}

/** Commands that the status table decides. */
export type LifecycleCommand =
  | ({ readonly type: "model.register"; readonly id: ModelId } & Made)
  | {
      readonly type: "model.load";
      readonly id: ModelId;
      /** Absent: load what is declared, or what is in `error`. */
      readonly source: Made | undefined;
      readonly trigger: "eager" | "call";
    }
  /** A request has found the model not ready, and may wait for it. */
  | { readonly type: "model.need"; readonly id: ModelId }
  | {
      readonly type: "model.unload";
      readonly id: ModelId;
      readonly timeoutMs: number;
      readonly force: boolean;
      /** Forget the declaration as well. */
      readonly forget: boolean;
      readonly reason: UnloadReason;
    }
  /** Nobody waits for this load any more, or for what follows on this life. */
  | ({ readonly type: "load.abandoned" } & Life);

/** What the engine holds, as it reports it after the load. */
interface Measured {
  readonly placement: Placement;
  readonly mappedBytes: number;
  readonly shared?: SharedPart | undefined;
}

/** The machine's memory pools at one moment. */
export interface SeenDevices {
  readonly devices: readonly DeviceInfo[];
  /** `measuredCount` of the table before they were looked at. */
  readonly asOf: number;
}

/** Facts that the status table decides. */
export type LifecycleFact =
  /** The file of a declared model is good. */
  | ({ readonly type: "check.done"; readonly model: ResolvedModel; readonly profile: ModelProfile } & Life)
  | ({ readonly type: "check.failed"; readonly error: ModelSupervisorError } & Life)
  | ({
      readonly type: "load.done";
      readonly live: LiveModel;
      readonly measured: Measured;
      readonly at: number;
      readonly seen: SeenDevices;
    } & Life)
  | ({ readonly type: "load.failed"; readonly error: ModelSupervisorError } & Life)
  /** Requests were in flight when the time was up; nothing was disposed. */
  | ({ readonly type: "unload.expired"; readonly order: number; readonly error: ModelSupervisorError } & Life)
  | ({ readonly type: "dispose.failed"; readonly error: ModelSupervisorError } & Life)
  /** Nothing of this life is in memory any more. Every life that got past its reservation ends with this. */
  | ({ readonly type: "memory.released"; readonly seen?: SeenDevices } & Life)
  | ({ readonly type: "backing.down"; readonly exit: BackingExit } & Life);

export type LifecycleEvent = LifecycleCommand | LifecycleFact;

/** The claim that a load makes before it touches the device; answered when it holds, or cannot. */
export interface ReserveRequest extends Life, SeenDevices {
  readonly type: "memory.reserve";
  readonly model: ResolvedModel;
  readonly profile: ModelProfile;
  readonly estimate: Estimate;
  readonly placement: Placement;
  readonly shared?: SharedPart | undefined;
  readonly reply: Reply<void>;
}

/** The engine had no room for what the plan said fits; answered when one more model has gone, or none can. */
export interface MoreRoomRequest extends Life {
  readonly type: "memory.more";
  /** The engine's. */
  readonly error: InsufficientMemoryError;
  readonly reply: Reply<void>;
}

/** A lease on one model: whoever has it must release it once. */
export interface Held {
  readonly entry: Entry;
  readonly live: LiveModel;
  /** Of one that was waited for: stands for its holder until that has taken over. */
  readonly handover?: Handover;
}

/** A load call: the ticket lets it be withdrawn. */
export type LoadCall = Extract<LifecycleCommand, { type: "model.load" }> & {
  readonly makeDefault: boolean;
  readonly onProgress: ((phase: LoadProgress["phase"], fraction: number) => void) | undefined;
  readonly ticket: symbol;
  readonly reply: Reply<ModelInfo>;
};

export type ManagerEvent =
  | LoadCall
  | (Extract<LifecycleCommand, { type: "model.register" }> & {
      readonly makeDefault: boolean;
      readonly ticket: symbol;
      readonly reply: Reply<ModelInfo>;
    })
  | (Extract<LifecycleCommand, { type: "model.need" }> & { readonly ticket: symbol; readonly reply: Reply<Held> })
  /** The caller with this ticket waits no more. */
  | { readonly type: "wait.withdraw"; readonly ticket: symbol }
  | { readonly type: "budget.set"; readonly budget: MemoryBudget; readonly reply: Reply<MemoryReport> }
  /** It is time to look for models whose TTL has passed. */
  | { readonly type: "sweep" }
  /** A model that somebody waits for has fallen idle. */
  | { readonly type: "model.idle" }
  | (Extract<LifecycleCommand, { type: "model.unload" }> & { readonly reply: Reply<void> })
  | { readonly type: "default.set"; readonly id: ModelId; readonly reply: Reply<void> }
  | { readonly type: "ready.wait"; readonly ticket: symbol; readonly reply: Reply<void> }
  /** The tasks supervisor was restarted; the tasks under way are gone. */
  | { readonly type: "tasks.lost" }
  | { readonly type: "manager.close"; readonly timeoutMs: number; readonly reply: Reply<void> }
  | ReserveRequest
  | MoreRoomRequest
  | LifecycleFact;
