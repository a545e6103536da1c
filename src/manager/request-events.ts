/** What becomes of a request, told to whoever listens; nothing is made where nobody does. */
import type { Clock, RequestEvent, RequestOutcome } from "../api.js";
import { isModelSupervisorError } from "../errors.js";
import type { FinishReason, RequestPhase, Timings, Usage } from "../inference.js";
import type { ModelEvents } from "./emitter.js";

export type CallName = RequestEvent["call"];

/** Follows one request. */
export interface RequestLog {
  queued(position: number): void;
  done(result: unknown): void;
  failed(reason: unknown, phase: RequestPhase): void;
}

/** What results may say about themselves; those of some calls say nothing. */
interface Measured {
  readonly finishReason?: FinishReason;
  readonly usage?: { readonly promptTokens: number } & Partial<Usage>;
  readonly timings?: Timings;
}

const HEARD = ["request:start", "request:queued", "request:end"] as const;
/** Codes of requests that were ended, not failed. */
const ABORTS = new Set(["request_aborted", "request_timeout"]);

export class RequestEvents {
  readonly #events: ModelEvents;

  constructor(events: ModelEvents) {
    this.#events = events;
  }

  /** `undefined` where nobody listens. */
  begin(request: RequestEvent, clock: Clock): RequestLog | undefined {
    const events = this.#events;
    if (!HEARD.some((name) => events.isHeard(name))) return undefined;
    const startedAt = clock.now();
    const end = (outcome: Omit<RequestOutcome, "durationMs">) =>
      events.emit({ name: "request:end", payload: { ...request, ...outcome, durationMs: clock.now() - startedAt } });
    events.emit({ name: "request:start", payload: request });
    return {
      queued: (position) => events.emit({ name: "request:queued", payload: { ...request, position } }),
      done: (result) => end({ outcome: "done", ...measuredOf(result) }),
      failed: (reason, phase) => {
        const code = isModelSupervisorError(reason) ? reason.code : undefined;
        end({ outcome: outcomeOf(reason), phase, ...(code !== undefined && { code }) });
      },
    };
  }
}

/** How a request ended that did not succeed. */
export function outcomeOf(reason: unknown): "aborted" | "failed" {
  return !isModelSupervisorError(reason) || ABORTS.has(reason.code) ? "aborted" : "failed";
}

/** How long a request waited for a slot, if its result says so. */
export function queueMsOf(result: unknown): number | undefined {
  if (typeof result !== "object" || result === null) return undefined;
  const { timings }: Measured = result;
  return timings?.queueMs;
}

/** The facts of a result, without what was said. */
function measuredOf(result: unknown): Measured {
  if (typeof result !== "object" || result === null) return {};
  const { finishReason, usage, timings }: Measured = result;
  return {
    ...(finishReason !== undefined && { finishReason }),
    ...(usage !== undefined && { usage }),
    ...(timings !== undefined && { timings }),
  };
}
