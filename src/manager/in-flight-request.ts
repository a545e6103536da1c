/** One request while it runs: what the backing sees of it, and who may end it. */
import { nanoid } from "nanoid";
import type { Clock } from "../api.js";
import type { BackingRequest } from "../backends/backend.js";
import type { GenerationPart, Priority, RequestPhase } from "../inference.js";
import type { Abortable } from "../table/live-model.js";
import type { DispatchOptions } from "./request-options.js";

/** Who reads a stream: gets the pieces, may fall behind, and may leave. */
export interface Consumer {
  readonly onPart: (part: GenerationPart) => void;
  readonly left: AbortSignal;
  /** True while so much lies unread that no more is to be produced. */
  readonly isBehind: boolean;
  /** Set by who runs the request; called when `isBehind` has changed, and for each piece that is read meanwhile. */
  onPace: (() => void) | undefined;
}

export class InFlightRequest implements BackingRequest, Abortable {
  readonly id = nanoid();
  readonly #controller = new AbortController();
  readonly #reject: (reason: unknown) => void;
  readonly #consumer: Consumer | undefined;
  readonly onPart: ((part: GenerationPart) => void) | undefined;
  readonly scope: string | undefined;
  readonly priority: Priority | undefined;
  phase: RequestPhase = "queue";
  onResume: (() => void) | undefined;
  /** Set where somebody wants to know. */
  onQueued: ((position: number) => void) | undefined;
  settled = false;

  constructor(reject: (reason: unknown) => void, options: DispatchOptions, consumer: Consumer | undefined) {
    this.#reject = reject;
    this.#consumer = consumer;
    this.scope = options.scope;
    this.priority = options.priority;
    // nothing reaches the consumer after it has been told that the request is over
    this.onPart = consumer && ((part) => this.signal.aborted || consumer.onPart(part));
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get isPaused(): boolean {
    return this.#consumer?.isBehind ?? false;
  }

  set queuePosition(position: number) {
    this.onQueued?.(position);
  }

  abort(reason: unknown): void {
    if (this.settled || this.signal.aborted) return;
    this.#controller.abort(reason);
    this.#reject(reason);
  }
}

const DEFAULT_IDLE_CONSUMER_MS = 60_000;

/** Resumes the model when the reader has caught up, and ends the request when that takes too long. Returns how to stop. */
export function watchPace(
  consumer: Consumer | undefined,
  idleMs = DEFAULT_IDLE_CONSUMER_MS,
  clock: Clock,
  then: { readonly resume: () => void; readonly idle: (idleMs: number) => void },
): () => void {
  if (consumer === undefined) return () => undefined;
  let timer: unknown;
  const stop = () => {
    if (timer !== undefined) clock.clearTimeout(timer);
    timer = undefined;
  };
  const update = () => {
    stop();
    if (!consumer.isBehind) then.resume();
    else if (idleMs < Infinity) timer = clock.setTimeout(() => then.idle(idleMs), idleMs);
  };
  consumer.onPace = update;
  return () => {
    stop();
    consumer.onPace = undefined;
  };
}
