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
  RequestFailedError,
  RequestTimeoutError,
  isModelSupervisorError,
} from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import type { GenerationPart, RequestPhase } from "../inference.js";
import type { ModelId } from "../model.js";
import type { Entry } from "../table/entry.js";
import type { Abortable, LiveModel } from "../table/live-model.js";
import type { ModelTable } from "../table/model-table.js";
import type { ScopedRequestOptions } from "./options.js";
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

/** Who reads a stream: gets the pieces, and may leave. */
export interface Consumer {
  readonly onPart: (part: GenerationPart) => void;
  readonly left: AbortSignal;
}

/** What a request does on the backing. */
export type Work<T> = (backing: Backing, request: BackingRequest) => Promise<T>;

/**
 * Runs one request and releases the lease when the engine is quiet. The caller is answered at once when the request is
 * aborted; the lease stays until the backing has settled, so nothing is disposed under it.
 */
export function run<T>(
  { entry, live }: Held,
  clock: Clock,
  { signal, timeoutMs = Infinity, scope }: ScopedRequestOptions,
  work: Work<T>,
  consumer?: Consumer,
): Promise<T> {
  const { id: modelId, incarnation } = entry;
  return new Promise<T>((resolve, reject) => {
    const request = new InFlightRequest(reject, consumer?.onPart, scope);
    live.requests.add(request);
    const stopListening = [signal, consumer?.left].map((source) => onAbort(source, (reason) => request.abort(reason)));
    const timer =
      timeoutMs < Infinity
        ? clock.setTimeout(() => request.abort(new RequestTimeoutError(modelId, request.phase, timeoutMs)), timeoutMs)
        : undefined;
    const leave = () => {
      for (const stop of stopListening) stop();
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
        resolve(value);
      },
      async (error: unknown) => {
        const reason = isModelSupervisorError(error) ? error : await engineError(error, live, modelId, incarnation);
        request.settled = true;
        leave();
        reject(reason); // without effect if an abort has answered already
      },
    );
  });
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
  readonly onPart: ((part: GenerationPart) => void) | undefined;
  readonly scope: string | undefined;
  phase: RequestPhase = "queue";
  settled = false;

  constructor(
    reject: (reason: unknown) => void,
    onPart: ((part: GenerationPart) => void) | undefined,
    scope: string | undefined,
  ) {
    this.#reject = reject;
    this.scope = scope;
    // nothing reaches the consumer after it has been told that the request is over
    this.onPart = onPart && ((part) => this.signal.aborted || onPart(part));
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  abort(reason: unknown): void {
    if (this.settled || this.signal.aborted) return;
    this.#controller.abort(reason);
    this.#reject(reason);
  }
}
