import { describe, expect, it, vi } from "vitest";
import { ControlBlock, LifeState } from "../../src/table/control-block.js";

function readyBlock(onUnused: () => void = () => undefined): ControlBlock {
  const block = new ControlBlock(onUnused);
  block.moveTo(LifeState.READY);
  return block;
}

describe("ControlBlock", () => {
  it("admits nobody before it is ready", () => {
    const block = new ControlBlock(() => undefined);

    expect(block.acquire(1)).toBe(false);
    expect(block.leases).toBe(0);
    expect(block.lastUsedAt).toBeUndefined();
  });

  it("counts leases, remembers the peak and stamps the last use on acquire and release", () => {
    const block = readyBlock();

    expect(block.acquire(10)).toBe(true);
    expect(block.acquire(11)).toBe(true);
    expect([block.leases, block.lastUsedAt]).toEqual([2, 11]);
    block.release(20);

    expect([block.leases, block.peakLeases, block.lastUsedAt]).toEqual([1, 2, 20]);
  });

  it("remembers the peak of leases that were added to a lease as well", () => {
    const block = readyBlock();
    block.acquire(1);

    block.retain();
    block.release(2);

    expect([block.leases, block.peakLeases]).toEqual([1, 2]);
  });

  it("admits nobody once admission is closed, while leases that are out stay out", () => {
    const block = readyBlock();
    block.acquire(1);

    block.moveTo(LifeState.CLOSED);

    expect(block.acquire(2)).toBe(false);
    expect(block.leases).toBe(1);
    expect(block.lastUsedAt).toBe(1);
  });

  it("gives a lease back that was taken while admission closed, and says so", () => {
    const onUnused = vi.fn();
    const block = readyBlock(onUnused);
    // closes between the first look at the state and the second, as another thread would
    const add = vi.spyOn(Atomics, "add").mockImplementationOnce((words, index, value) => {
      add.mockRestore();
      block.moveTo(LifeState.CLOSED);
      return Atomics.add(words, index, value);
    });

    expect(block.acquire(1)).toBe(false);
    expect(block.leases).toBe(0);
    expect(onUnused).toHaveBeenCalledTimes(1);
  });

  it("tells when the last lease comes back after admission was closed, and never before", () => {
    const onUnused = vi.fn();
    const block = readyBlock(onUnused);
    block.acquire(1);
    block.acquire(1);
    block.release(2);
    expect(onUnused).not.toHaveBeenCalled();

    block.moveTo(LifeState.CLOSED);
    expect(onUnused).not.toHaveBeenCalled();
    block.release(3);

    expect(onUnused).toHaveBeenCalledTimes(1);
  });

  it("does not tell when the last lease comes back while it is ready", () => {
    const onUnused = vi.fn();
    const block = readyBlock(onUnused);
    block.acquire(1);

    block.release(2);

    expect(onUnused).not.toHaveBeenCalled();
  });

  it("throws on a release without a lease, and counts on", () => {
    const block = readyBlock();

    expect(() => block.release(1)).toThrow(TypeError);
    expect(block.leases).toBe(0);
    expect(block.acquire(2)).toBe(true);
  });

  it("lets a holder retain another lease even when admission is closed", () => {
    const block = readyBlock();
    block.acquire(1);
    block.moveTo(LifeState.CLOSED);

    block.retain();

    expect(block.leases).toBe(2);
  });

  it("throws on a retain by somebody who holds nothing", () => {
    const block = readyBlock();

    expect(() => block.retain()).toThrow(TypeError);
    expect(block.leases).toBe(0);
  });

  describe("while it is watched", () => {
    function watchedBlock(onUnused: () => void = () => undefined): ControlBlock {
      const block = readyBlock(onUnused);
      block.watch(true);
      return block;
    }

    it("admits everybody, as before", () => {
      const block = watchedBlock();

      expect([block.isReady, block.acquire(1), block.leases]).toEqual([true, true, 1]);
    });

    it("tells each time when the last lease comes back, and goes on admitting", () => {
      const onUnused = vi.fn();
      const block = watchedBlock(onUnused);
      block.acquire(1);
      block.acquire(1);
      block.release(2);
      expect(onUnused).not.toHaveBeenCalled();

      block.release(3);
      expect(onUnused).toHaveBeenCalledTimes(1);
      expect(block.acquire(4)).toBe(true);
      block.release(5);

      expect(onUnused).toHaveBeenCalledTimes(2);
    });

    it("tells nothing any more once the watch has ended", () => {
      const onUnused = vi.fn();
      const block = watchedBlock(onUnused);
      block.acquire(1);

      block.watch(false);
      block.release(2);

      expect(onUnused).not.toHaveBeenCalled();
      expect(block.isReady).toBe(true);
    });

    it("closes like any other", () => {
      const block = watchedBlock();

      block.moveTo(LifeState.CLOSED);

      expect([block.isReady, block.acquire(1)]).toEqual([false, false]);
    });

    it.each([true, false])("never opens what is closed (%s)", (isWatched) => {
      const block = readyBlock();
      block.moveTo(LifeState.CLOSED);

      block.watch(isWatched);

      expect([block.isReady, block.acquire(1)]).toEqual([false, false]);
    });
  });
});
