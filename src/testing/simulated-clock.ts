import { SimulatedClock as XstateClock } from "xstate";

/** A clock that stands still until a test moves it; for `clock` of `ModelSupervisor.start`. */
export interface SimulatedClock {
  /** Milliseconds; 0 at first. */
  now(): number;
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
  /** Moves the time on by so many milliseconds, and calls what became due, in its order. */
  increment(ms: number): void;
}

/** With a type of our own, so that users who check all declarations need not check xstate's. */
export const SimulatedClock: new () => SimulatedClock = XstateClock;
