/** One request while it runs: what the backing sees of it, and who may end it. */
import { nanoid } from "nanoid";
import type { Clock } from "../api.js";
import type { BackingRequest } from "../backends/backend.js";
import { RequestAbortedError, RequestTimeoutError } from "../errors.js";
import type { GenerationPart, Priority, RequestPhase } from "../inference.js";
import type { ModelId } from "../model.js";
import type { Abortable } from "../table/live-model.js";
import { onAbort } from "./on-abort.js";
import type { DispatchOptions } from "./request-options.js";

/** Who reads a stream: gets the pieces, may fall behind, and may leave. */
export interface Consumer {
  readonly onPart: (part: GenerationPart) => void;
  readonly left: AbortSignal;
  /** True while something lies unread. */
  readonly hasUnread: boolean;
  /** True while so much lies unread that no more is to be produced. */
  readonly isBehind: boolean;
  /** Set by who runs the request; called when one of these has changed, and for each piece that is read. */
  onPace: (() => void) | undefined;
}

const DEFAULT_IDLE_CONSUMER_MS = 60_000;

export interface InFlightInput {
  /** For messages. */
  readonly modelId: ModelId;
  readonly options: DispatchOptions;
  readonly consumer: Consumer | undefined;
  readonly clock: Clock;
  /** Answers the caller; only the first of all answers counts. */
  readonly reject: (reason: unknown) => void;
}

export class InFlightRequest implements BackingRequest, Abortable {
  readonly id = nanoid();
  readonly #controller = new AbortController();
  readonly #input: InFlightInput;
  readonly onPart: ((part: GenerationPart) => void) | undefined;
  readonly scope: string | undefined;
  readonly priority: Priority | undefined;
  phase: RequestPhase = "queue";
  onResume: (() => void) | undefined;
  /** Set where somebody wants to know. */
  onQueued: ((position: number) => void) | undefined;
  #hasEnded = false;
  /** How to stop listening to those who may end it. */
  readonly #stops: (() => void)[] = [];
  #idleTimer: unknown;
  #wasBehind = false;

  constructor(input: InFlightInput) {
    const { modelId, options, consumer, clock } = input;
    const { signal, timeoutMs = Infinity } = options;
    this.#input = input;
    this.scope = options.scope;
    this.priority = options.priority;
    // nothing reaches the consumer after it has been told that the request is over
    this.onPart = consumer && ((part) => this.signal.aborted || consumer.onPart(part));
    if (signal !== undefined) this.#stops.push(onAbort(signal, (reason) => this.abort(reason)));
    if (consumer !== undefined) {
      this.#stops.push(onAbort(consumer.left, (reason) => this.abort(reason)));
      consumer.onPace = () => this.#onPace(consumer);
    }
    if (timeoutMs === Infinity) return;
    const expire = () => this.abort(new RequestTimeoutError(modelId, this.phase, timeoutMs));
    const timer = clock.setTimeout(expire, timeoutMs);
    this.#stops.push(() => clock.clearTimeout(timer));
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get isPaused(): boolean {
    return this.#input.consumer?.isBehind ?? false;
  }

  set queuePosition(position: number) {
    this.onQueued?.(position);
  }

  abort(reason: unknown): void {
    if (this.#hasEnded || this.signal.aborted) return;
    this.#controller.abort(reason);
    this.#input.reject(reason);
  }

  /** It is over: nobody can end it any more. */
  end(): void {
    this.#hasEnded = true;
    for (const stop of this.#stops) stop();
    const { consumer } = this.#input;
    if (consumer === undefined) return;
    this.#stopIdling();
    consumer.onPace = undefined;
  }

  /** The model goes on when the reader has caught up. A reader who leaves something unread for too long has gone. */
  #onPace(consumer: Consumer): void {
    const { modelId, options, clock } = this.#input;
    const { idleConsumerMs = DEFAULT_IDLE_CONSUMER_MS } = options;
    this.#stopIdling();
    if (this.#wasBehind && !consumer.isBehind) this.onResume?.();
    this.#wasBehind = consumer.isBehind;
    if (consumer.hasUnread && idleConsumerMs < Infinity) {
      const detail = `the consumer of its stream has read nothing for ${idleConsumerMs} ms`;
      const expire = () => this.abort(new RequestAbortedError(modelId, detail));
      this.#idleTimer = clock.setTimeout(expire, idleConsumerMs);
    }
  }

  #stopIdling(): void {
    if (this.#idleTimer !== undefined) this.#input.clock.clearTimeout(this.#idleTimer);
    this.#idleTimer = undefined;
  }
}
