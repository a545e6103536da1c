import type { Clock } from "../api.js";
import { RequestTimeoutError } from "../errors.js";
import type { WaitOptions } from "../inference.js";
import { onAbort } from "./on-abort.js";

/** Waits for a model until the caller leaves or has waited for long enough. `work` gives up when its signal aborts. */
export async function within<T>(
  { signal, timeoutMs = Infinity }: WaitOptions,
  subject: string,
  clock: Clock,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const leave = new AbortController();
  const stopListening = onAbort(signal, (reason) => leave.abort(reason));
  const timer =
    timeoutMs < Infinity
      ? clock.setTimeout(() => leave.abort(new RequestTimeoutError(subject, "load", timeoutMs)), timeoutMs)
      : undefined;
  try {
    return await work(leave.signal);
  } finally {
    stopListening();
    if (timer !== undefined) clock.clearTimeout(timer);
  }
}
