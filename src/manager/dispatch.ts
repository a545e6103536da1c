/**
 * The path of an inference call: table read, lease, backing. Nothing here sends to an actor or waits for the manager.
 */
import type { Clock } from "../api.js";
import type { Backing, BackingRequest } from "../backends/backend.js";
import { BackingCrashedError, RequestFailedError, isModelSupervisorError } from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import type { ModelId } from "../model.js";
import type { Entry } from "../table/entry.js";
import type { LiveModel } from "../table/live-model.js";
import { takeOver } from "./handover.js";
import { InFlightRequest, type Consumer } from "./in-flight-request.js";
import type { MetricsRecorder } from "./metrics/recorder.js";
import type { Held } from "./protocol.js";
import type { CallName, RequestEvents } from "./request-events.js";
import { outcomeOf, queueMsOf } from "./request-events.js";
import type { DispatchOptions } from "./request-options.js";

/**
 * Whom a call is for. `hold` takes a lease where there is one to be had now, else `wait` waits for the model; it gives up
 * with the signal's reason.
 *
 * @throws no_default_model, not_loaded, or not_ready where waiting would not help or is not wanted
 */
export interface Target {
  readonly modelId: ModelId;
  hold(waitForLoad: boolean | undefined): Held | undefined;
  wait(signal: AbortSignal): Promise<Held>;
}

/** What a request does on the backing. */
export type Work<T> = (backing: Backing, request: BackingRequest, entry: Entry) => Promise<T>;

/** What all requests of a manager share. */
export interface DispatchContext {
  readonly clock: Clock;
  readonly events: RequestEvents;
  readonly metrics: MetricsRecorder;
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
export async function run<T>(target: Target, context: DispatchContext, call: Call, work: Work<T>): Promise<T> {
  const { clock } = context;
  const { options, consumer } = call;
  const held = target.hold(options.waitForLoad);
  const { modelId } = target;
  return new Promise<T>((resolve, reject) => {
    const request = new InFlightRequest({ modelId, options, consumer, clock, reject });
    if (held !== undefined) return void perform(held, request, context, call, work).then(resolve, reject);
    const since = clock.now();
    request.phase = "load";
    target
      .wait(request.signal)
      .then(
        (got) => {
          context.metrics.coldStart(modelId, clock.now() - since);
          request.phase = "queue";
          return perform(got, request, context, call, work);
        },
        (error: unknown) => {
          request.end();
          context.metrics.requestEnded(modelId, outcomeOf(error));
          throw error;
        },
      )
      .then(resolve, reject); // without effect if an abort has answered already
  });
}

/** With the lease in hand. */
async function perform<T>(
  held: Held,
  request: InFlightRequest,
  context: DispatchContext,
  { name }: Call,
  work: Work<T>,
): Promise<T> {
  const { entry, live } = held;
  const { clock, events, metrics } = context;
  const { id: modelId, incarnation } = entry;
  const log = events.begin({ modelId, incarnation, requestId: request.id, call: name }, clock);
  if (log !== undefined) request.onQueued = (position) => log.queued(position);
  takeOver(held, request);
  let value: T;
  try {
    request.signal.throwIfAborted();
    value = await work(live.backing, request, entry);
  } catch (error) {
    const reason = isModelSupervisorError(error) ? error : await engineError(error, live, modelId, incarnation);
    leave(held, request, clock);
    const why: unknown = request.signal.aborted ? request.signal.reason : reason;
    metrics.requestEnded(modelId, outcomeOf(why));
    log?.failed(why, request.phase);
    throw reason;
  }
  leave(held, request, clock);
  metrics.requestEnded(modelId, "done", queueMsOf(value));
  log?.done(value);
  return value;
}

/** The engine is quiet for the request: the lease goes back. */
function leave({ live }: Held, request: InFlightRequest, clock: Clock): void {
  request.end();
  live.requests.delete(request);
  live.block.release(clock.now());
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
