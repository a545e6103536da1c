/**
 * The path of an inference call: table read, lease, backing. Nothing here sends to an actor or waits for the manager.
 */
import { nanoid } from "nanoid";
import type { Clock } from "../api.js";
import { DEFAULT_MODEL } from "../api.js";
import type { Backing, BackingRequest } from "../backends/backend.js";
import {
  BackingCrashedError,
  NoDefaultModelError,
  NotLoadedError,
  NotReadyError,
  RequestAbortedError,
  RequestFailedError,
  RequestTimeoutError,
  isModelSupervisorError,
} from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import type { GenerationPart, Priority, RequestPhase } from "../inference.js";
import type { ModelId } from "../model.js";
import type { Entry } from "../table/entry.js";
import type { Abortable, LiveModel } from "../table/live-model.js";
import type { ModelTable } from "../table/model-table.js";
import type { DispatchOptions } from "./options.js";
import type { CallName, RequestEvents } from "./request-events.js";
import { onAbort } from "./on-abort.js";

/** A lease on one model: whoever has it must release it once. */
export interface Held {
  readonly entry: Entry;
  readonly live: LiveModel;
}

/** Resolves the id and takes a lease. Throws `no_default_model`, `not_loaded` or `not_ready`. */
export function hold(table: ModelTable, id: ModelId, clock: Clock): Held {
  const modelId = id === DEFAULT_MODEL ? table.defaultId() : id;
  if (modelId === undefined) throw new NoDefaultModelError();
  const entry = table.get(modelId);
  if (entry === undefined) throw new NotLoadedError(modelId);
  const { live } = entry;
  if (live === undefined || !live.block.acquire(clock.now()))
    throw new NotReadyError(modelId, entry.status, entry.error);
  return { entry, live };
}

/** Who reads a stream: gets the pieces, may fall behind, and may leave. */
export interface Consumer {
  readonly onPart: (part: GenerationPart) => void;
  readonly left: AbortSignal;
  /** True while so much lies unread that no more is to be produced. */
  readonly isBehind: boolean;
  /** Set by who runs the request; called when `isBehind` has changed, and for each piece that is read meanwhile. */
  onPace: (() => void) | undefined;
}

/** What a request does on the backing. */
export type Work<T> = (backing: Backing, request: BackingRequest) => Promise<T>;

/** What all requests of a manager share. */
export interface DispatchContext {
  readonly clock: Clock;
  readonly events: RequestEvents;
}

/** One inference call. */
export interface Call {
  readonly name: CallName;
  readonly options: DispatchOptions;
  readonly consumer?: Consumer | undefined;
}

/**
 * Runs one request and releases the lease when the engine is quiet. The caller is answered at once when the request is
 * aborted; the lease stays until the backing has settled, so nothing is disposed under it.
 */
export function run<T>(
  { entry, live }: Held,
  { clock, events }: DispatchContext,
  { name, options, consumer }: Call,
  work: Work<T>,
): Promise<T> {
  const { id: modelId, incarnation } = entry;
  const { signal, timeoutMs = Infinity, idleConsumerMs } = options;
  return new Promise<T>((resolve, reject) => {
    const request = new InFlightRequest(reject, options, consumer);
    const log = events.begin({ modelId, incarnation, requestId: request.id, call: name }, clock);
    request.onQueued = log && ((position) => log.queued(position));
    live.requests.add(request);
    const stopListening = [signal, consumer?.left].map((source) => onAbort(source, (reason) => request.abort(reason)));
    const timer =
      timeoutMs < Infinity
        ? clock.setTimeout(() => request.abort(new RequestTimeoutError(modelId, request.phase, timeoutMs)), timeoutMs)
        : undefined;
    const stopWatching = watchPace(consumer, idleConsumerMs, clock, {
      resume: () => request.onResume?.(),
      idle: (idleMs) =>
        request.abort(new RequestAbortedError(modelId, `the consumer of its stream has read nothing for ${idleMs} ms`)),
    });
    const leave = () => {
      for (const stop of stopListening) stop();
      stopWatching();
      if (timer !== undefined) clock.clearTimeout(timer);
      live.requests.delete(request);
      live.block.release(clock.now());
    };
    // an async function, so that a backing that throws instead of rejecting is treated alike
    const working = request.signal.aborted
      ? Promise.reject(request.signal.reason)
      : (async () => work(live.backing, request))();
    working.then(
      (value) => {
        request.settled = true;
        leave();
        log?.done(value);
        resolve(value);
      },
      async (error: unknown) => {
        const reason = isModelSupervisorError(error) ? error : await engineError(error, live, modelId, incarnation);
        request.settled = true;
        leave();
        log?.failed(request.signal.aborted ? request.signal.reason : reason, request.phase);
        reject(reason); // without effect if an abort has answered already
      },
    );
  });
}

const DEFAULT_IDLE_CONSUMER_MS = 60_000;

/** Resumes the model when the reader has caught up, and ends the request when that takes too long. Returns how to stop. */
function watchPace(
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

/** An untyped error of the engine: the whole backing went down (then `exited` has settled before), or this request failed. */
async function engineError(
  error: unknown,
  live: LiveModel,
  modelId: ModelId,
  incarnation: number,
): Promise<ModelSupervisorError> {
  const exit = await Promise.race([live.exited, Promise.resolve(undefined)]);
  return exit?.reason === "crashed"
    ? new BackingCrashedError({ ...exit, modelId, incarnation })
    : new RequestFailedError(modelId, error);
}

class InFlightRequest implements BackingRequest, Abortable {
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
