/** One piece of work for all who want its result at the same time; it ends with the last one who wants it. */
import { unlessAborted } from "../unless-aborted.js";

interface Work {
  readonly done: Promise<void>;
  readonly controller: AbortController;
  /** Of each one who waits. */
  readonly listeners: Set<(bytes: number) => void>;
  bytes: number;
}

const running = new Map<string, Work>();

/**
 * Joins the work under this key, or begins it. Rejects with the signal's reason at once when it aborts; the work itself is
 * aborted when nobody waits any more, and the next one who comes waits for its end before it begins anew.
 */
export async function share(
  key: string,
  signal: AbortSignal,
  onBytes: (bytes: number) => void,
  begin: (signal: AbortSignal, onBytes: (bytes: number) => void) => Promise<void>,
): Promise<void> {
  signal.throwIfAborted();
  let work = running.get(key);
  while (work?.controller.signal.aborted) {
    await settled(work.done, signal);
    work = running.get(key);
  }
  const joined = work ?? start(key, begin);
  // one who comes later sees at once how far it is
  if (joined.bytes > 0) onBytes(joined.bytes);
  // two who wait may have passed the same function
  const listener = (bytes: number) => onBytes(bytes);
  joined.listeners.add(listener);
  try {
    await unlessAborted(joined.done, signal);
  } finally {
    joined.listeners.delete(listener);
    if (joined.listeners.size === 0) joined.controller.abort(signal.reason);
  }
}

function start(key: string, begin: Parameters<typeof share>[3]): Work {
  const controller = new AbortController();
  const listeners = new Set<(bytes: number) => void>();
  const onBytes = (bytes: number) => {
    work.bytes = bytes;
    for (const listener of listeners) listener(bytes);
  };
  const done = Promise.resolve()
    .then(() => begin(controller.signal, onBytes))
    .finally(() => running.delete(key));
  // all who wanted to hear of a failure may be gone
  done.catch(() => undefined);
  const work: Work = { done, controller, listeners, bytes: 0 };
  running.set(key, work);
  return work;
}

function settled(work: Promise<void>, signal: AbortSignal): Promise<void> {
  const ended = work.catch(() => undefined);
  return unlessAborted(ended, signal);
}
