import { vi } from "vitest";
import type { LiveModel } from "../../../src/table/live-model.js";

/** Ends the first half of an acquire. */
class Suspended extends Error {}

/**
 * A request on another thread: it takes its lease by the control block alone, and may stand still between two of the
 * atomic operations of that, while this thread goes on. One thread cannot do that, so the acquire is left by an exception
 * after `stopAfter` operations, and done again later, with what these operations gave instead of doing them twice.
 */
export class OtherThread {
  readonly live: LiveModel;
  readonly #now: number;
  /** What the operations gave so far. Numbers; the type is that of the operations' last overload. */
  readonly #seen: bigint[] = [];
  state: "suspended" | "holds" | "gone";

  constructor(live: LiveModel, now: number, stopAfter: number) {
    this.live = live;
    this.#now = now;
    this.state = this.#acquire(stopAfter);
  }

  /** The rest of the acquire. */
  resume(): void {
    if (this.state === "suspended") this.state = this.#acquire(Infinity);
  }

  release(now: number): void {
    if (this.state === "holds") this.live.block.release(now);
    this.state = "gone";
  }

  #acquire(stopAfter: number): OtherThread["state"] {
    const { load, add } = Atomics;
    const done = [...this.#seen];
    const step = (operate: () => bigint): bigint => {
      const before = done.shift();
      if (before !== undefined) return before;
      const value = operate();
      this.#seen.push(value);
      if (this.#seen.length === stopAfter) throw new Suspended();
      return value;
    };
    const spies = [
      vi.spyOn(Atomics, "load").mockImplementation((words, index) => step(() => load(words, index))),
      vi.spyOn(Atomics, "add").mockImplementation((words, index, by) => step(() => add(words, index, by))),
    ];
    try {
      return this.live.block.acquire(this.#now) ? "holds" : "gone";
    } catch (error) {
      if (error instanceof Suspended) return "suspended";
      throw error;
    } finally {
      for (const spy of spies) spy.mockRestore();
    }
  }
}
