import { describe, expect, it } from "vitest";
import { Sweeper } from "../../src/manager/sweeper.js";

/** Timers that the test fires; each tells whether it still keeps a process alive. */
class Timers {
  readonly set: { delayMs: number; isCleared: boolean; isReferenced: boolean; fire(): void }[] = [];

  time = 0;

  now = () => this.time;

  setTimeout(callback: () => void, delayMs: number) {
    const timer = {
      delayMs,
      isCleared: false,
      isReferenced: true,
      fire: callback,
      unref: () => void (timer.isReferenced = false),
    };
    this.set.push(timer);
    return timer;
  }

  clearTimeout(handle: unknown): void {
    for (const timer of this.set) if (timer === handle) timer.isCleared = true;
  }

  get running() {
    return this.set.filter(({ isCleared }) => !isCleared).map(({ delayMs }) => delayMs);
  }
}

function sweeper() {
  const timers = new Timers();
  let ticks = 0;
  const swept = new Sweeper(timers, () => (ticks += 1));
  return { timers, swept, ticks: () => ticks };
}

describe("Sweeper", () => {
  it("sets one timer, however often it is wanted, and keeps no process alive with it", () => {
    const { timers, swept } = sweeper();

    for (let time = 0; time < 5; time++) swept.want(1_000);

    expect(timers.running).toEqual([1_000]);
    expect(timers.set.map(({ isReferenced }) => isReferenced)).toEqual([false]);
  });

  it("ticks once for each timer, and goes on only where it is wanted again", () => {
    const { timers, swept, ticks } = sweeper();
    swept.want(1_000);

    timers.set[0]?.fire();
    expect(ticks()).toBe(1);
    swept.want(1_000);

    expect(timers.set).toHaveLength(2);
  });

  it("is not put off by somebody who begins to wait for it, and keeps the process alive for as long", () => {
    const { timers, swept } = sweeper();
    swept.want(1_000);
    timers.time = 700;

    swept.want(1_000, true);
    expect(timers.running).toEqual([300]);
    expect(timers.set.at(-1)?.isReferenced).toBe(true);
    timers.time = 800;
    swept.want(1_000);

    expect(timers.running).toEqual([200]);
    expect(timers.set.at(-1)?.isReferenced).toBe(false);
  });

  it("comes sooner when it is wanted sooner", () => {
    const { timers, swept } = sweeper();
    swept.want(1_000);
    swept.want(100);

    expect(timers.running).toEqual([100]);
  });

  it("lets a timer that comes sooner than needed run, so that no tick is put off for ever", () => {
    const { timers, swept } = sweeper();
    swept.want(100);
    swept.want(1_000);

    expect(timers.running).toEqual([100]);
  });

  it.each([
    ["is not wanted any more", (swept: Sweeper) => swept.want(undefined)],
    ["is stopped", (swept: Sweeper) => swept.stop()],
  ])("ticks no more once it %s", (_how, end) => {
    const { timers, swept } = sweeper();
    swept.want(1_000);

    end(swept);

    expect(timers.running).toEqual([]);
  });

  it("takes clocks whose timers keep no process alive anyway", () => {
    const clock = { now: () => 0, setTimeout: () => 1, clearTimeout: () => undefined };
    const swept = new Sweeper(clock, () => undefined);

    expect(() => swept.want(1_000)).not.toThrow();
  });
});
