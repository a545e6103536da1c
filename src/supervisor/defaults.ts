import type { Clock, Logger } from "../api.js";

/** Requests that may wait over all models. */
export const DEFAULT_MAX_QUEUE_TOTAL = 1_024;
/** How long a load waits for models in use. */
export const DEFAULT_MAX_WAIT_MS = 30_000;
/** How often models are looked at whose TTL may have passed. */
export const DEFAULT_SWEEP_INTERVAL_MS = 1_000;

/** The system's time. Nothing else in the library reads it. */
export const DEFAULT_CLOCK: Clock = {
  now: () => Date.now(),
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => {
    if (isTimer(handle)) clearTimeout(handle);
  },
};

/** A logger that throws must not take down the part that has something to say; nor one that rejects, the process. */
export function safeLogger(logger: Logger): Logger {
  return {
    warn: (message, error) => {
      const tell = (fault: unknown) => DEFAULT_LOGGER.warn(`The logger threw on: ${message}`, fault);
      try {
        // a logger may be asynchronous, whatever its type says
        Promise.resolve(logger.warn(message, error)).catch(tell);
      } catch (fault) {
        tell(fault);
      }
    },
  };
}

function isTimer(handle: unknown): handle is NodeJS.Timeout {
  return handle instanceof Object && "unref" in handle;
}

export const DEFAULT_LOGGER: Logger = {
  warn: (message, error) => {
    process.emitWarning(
      error instanceof Error ? `${message} ${error.stack ?? error.message}` : message,
      "ModelSupervisorWarning",
    );
  },
};
