/** The slow work that the manager orders. It is done in task actors and comes back as facts. */
import type { ModelSource, UnloadReason } from "../model.js";
import type { Leaving, LoadSettings } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";
import type { Life, LoadCall } from "./protocol.js";

export interface LoadOrder extends Life {
  readonly source: ModelSource;
  readonly settings: LoadSettings;
  readonly onProgress: LoadCall["onProgress"];
}

export interface UnloadOrder extends Life, Omit<Leaving, "forget"> {
  readonly live: LiveModel;
}

/** What the manager needs of its siblings in the tree. Every method only sends; none waits. */
export interface Tasks {
  /** Ends with `load.done`, or with `memory.released` and then, if nobody cancelled it, `load.failed`. */
  load(order: LoadOrder): void;
  /** Ends with `check.done` or `check.failed`. */
  check(order: Omit<LoadOrder, "onProgress">): void;
  abortLoad(life: Life): void;
  /** Ends with `memory.released`, or with `unload.expired`. `dispose.failed` may come before. */
  unload(order: UnloadOrder): void;
  /** Makes an unload under way abort what is left after `timeoutMs` from now, if that is sooner. */
  hastenUnload(life: Life, timeoutMs: number, reason: UnloadReason): void;
  /** Reports `backing.down` when the backing has ended. */
  watch(life: Life, live: LiveModel): void;
}
