import { setMaxListeners } from "node:events";

const nothing = () => undefined;

/** Calls `abort` when the signal aborts, at once if it has. Returns the way to stop listening. */
export function onAbort(signal: AbortSignal | undefined, abort: (reason: unknown) => void): () => void {
  if (signal === undefined) return nothing;
  // one caller's signal may serve any number of requests, which Node would take for a leak from the eleventh on
  setMaxListeners(0, signal);
  const listener = () => abort(signal.reason);
  if (signal.aborted) listener();
  else signal.addEventListener("abort", listener, { once: true });
  return () => signal.removeEventListener("abort", listener);
}
