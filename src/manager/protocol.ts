/** What the manager's mailbox carries: commands from callers and facts from tasks. Lifecycle only, never a request. */
import type { LoadProgress } from "../api.js";
import type { BackingExit, Estimate, ModelProfile, ResolvedModel } from "../backends/backend.js";
import type { ModelSupervisorError } from "../errors.js";
import type { DeviceInfo, ModelId, ModelInfo, ModelSource, Placement, UnloadReason } from "../model.js";
import type { LoadSettings, SharedPart } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";

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

/** Commands that the status table decides. */
export type LifecycleCommand =
  | {
      readonly type: "model.load";
      readonly id: ModelId;
      /** Absent: load what is declared, or what is in `error`. */
      readonly source: { readonly source: ModelSource; readonly settings: LoadSettings } | undefined;
    }
  | {
      readonly type: "model.unload";
      readonly id: ModelId;
      readonly timeoutMs: number;
      readonly force: boolean;
      /** Forget the declaration as well. */
      readonly forget: boolean;
      readonly reason: UnloadReason;
    }
  /** Nobody waits for this load any more. */
  | ({ readonly type: "load.abandoned" } & Life);

/** What the engine holds, as it reports it after the load. */
interface Measured {
  readonly placement: Placement;
  readonly mappedBytes: number;
  readonly shared?: SharedPart | undefined;
}

/** Facts that the status table decides. */
export type LifecycleFact =
  | ({
      readonly type: "load.done";
      readonly live: LiveModel;
      readonly measured: Measured;
      readonly at: number;
      /** The machine's memory pools after the load. */
      readonly devices: readonly DeviceInfo[];
    } & Life)
  | ({ readonly type: "load.failed"; readonly error: ModelSupervisorError } & Life)
  /** Requests were in flight when the time was up; nothing was disposed. */
  | ({ readonly type: "unload.expired"; readonly order: number; readonly error: ModelSupervisorError } & Life)
  | ({ readonly type: "dispose.failed"; readonly error: ModelSupervisorError } & Life)
  /** Nothing of this life is in memory any more. Every life that got past its reservation ends with this. */
  | ({ readonly type: "memory.released"; readonly devices?: readonly DeviceInfo[] } & Life)
  | ({ readonly type: "backing.down"; readonly exit: BackingExit } & Life);

export type LifecycleEvent = LifecycleCommand | LifecycleFact;

/** The claim that a load makes before it touches the device; answered with whether it holds. */
export interface ReserveRequest extends Life {
  readonly type: "memory.reserve";
  readonly model: ResolvedModel;
  readonly profile: ModelProfile;
  readonly estimate: Estimate;
  readonly placement: Placement;
  readonly shared?: SharedPart | undefined;
  readonly devices: readonly DeviceInfo[];
  /** `measuredCount` of the table before the devices were looked at. */
  readonly asOf: number;
  readonly reply: Reply<void>;
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
  | { readonly type: "load.withdraw"; readonly ticket: symbol }
  | (Extract<LifecycleCommand, { type: "model.unload" }> & { readonly reply: Reply<void> })
  | { readonly type: "default.set"; readonly id: ModelId; readonly reply: Reply<void> }
  | { readonly type: "ready.wait"; readonly ticket: symbol; readonly reply: Reply<void> }
  | { readonly type: "ready.withdraw"; readonly ticket: symbol }
  /** The tasks supervisor was restarted; the tasks under way are gone. */
  | { readonly type: "tasks.lost" }
  | { readonly type: "manager.close"; readonly timeoutMs: number; readonly reply: Reply<void> }
  | ReserveRequest
  | LifecycleFact;
