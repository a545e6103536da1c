import { Turns } from "./turns.js";

/** The library loads one model at a time; waiting for that is done here, where an abort ends it at once. */
const loads = new Turns();

/** Resolves when no weights are being loaded and nothing is measured, with the function that ends the turn. */
export function takeLoadTurn(signal: AbortSignal): Promise<() => void> {
  return loads.take(signal);
}
