import { describe, expect, it } from "vitest";
import { SharedWeights } from "../../../src/backends/node-llama-cpp/shared-weights.js";
import { Gate } from "../../../src/testing/index.js";
import { never } from "./engine-fixture.js";

const FILE = { identity: "a file", gpuLayers: 0 };

/** A copy that was loaded, number by number; its disposal can be held, or made to fail. */
class Weights {
  disposed = false;
  readonly number: number;
  readonly #place: Place;

  constructor(number: number, place: Place) {
    this.number = number;
    this.#place = place;
  }

  async dispose(): Promise<void> {
    this.disposed = true;
    await this.#place.disposing?.enter();
    if (this.#place.disposalError) throw this.#place.disposalError;
    this.#place.log.push(`dispose ${this.number}`);
  }
}

/** An engine that loads one file, and what happened in it. */
class Place {
  readonly weights = new SharedWeights<Weights>();
  readonly log: string[] = [];
  loading: Gate | undefined;
  disposing: Gate | undefined;
  disposalError: Error | undefined;
  loadError: Error | undefined;
  tell: ((fraction: number) => void) | undefined;
  #loads = 0;

  join(context: { signal?: AbortSignal; onProgress?: (fraction: number) => void } = {}, wanted = FILE) {
    return this.weights.join(wanted, { signal: never, ...context }, async ({ signal, onProgress }) => {
      const number = ++this.#loads;
      this.tell = onProgress;
      this.log.push(`load ${number}`);
      try {
        await this.loading?.enter(signal);
        if (this.loadError) throw this.loadError;
      } catch (error) {
        this.log.push(`failed ${number}`);
        throw error;
      }
      return new Weights(number, this);
    });
  }

  async load(wanted = FILE) {
    const share = await this.join({}, wanted);
    return { ...share, native: await share.loaded() };
  }
}

describe("two models of the same weights", () => {
  it("have one copy, loaded once and disposed with the last of them", async () => {
    const place = new Place();

    const [one, other] = await Promise.all([place.load(), place.load()]);
    const third = await place.load();
    expect(new Set([one.native, other.native, third.native]).size).toBe(1);

    await one.release();
    await third.release();
    expect(place.log).toEqual(["load 1"]);
    await other.release();
    expect(place.log).toEqual(["load 1", "dispose 1"]);
  });

  it("have the key that was told before the load; other files and layers have others", async () => {
    const place = new Place();
    const told = place.weights.keyOf(FILE);

    const { key } = await place.load();

    expect(key).toBe(told);
    expect(place.weights.keyOf({ ...FILE, gpuLayers: 1 })).not.toBe(key);
    expect(place.weights.keyOf({ ...FILE, identity: "another file" })).not.toBe(key);
  });

  it("take as many layers as the copy that is there, while it is there", async () => {
    const place = new Place();
    const layers = () => place.weights.loadedLayers(FILE.identity);
    const before = layers();

    const share = await place.load({ ...FILE, gpuLayers: 7 });
    const during = [layers(), place.weights.loadedLayers("another file")];
    await share.release();

    expect([before, ...during, layers()]).toEqual([undefined, 7, undefined, undefined]);
  });

  it("both hear of the progress, also when nobody listened at first", async () => {
    const place = new Place();
    place.loading = new Gate();
    const heard: [string, number][] = [];
    const listen = (name: string) => ({ onProgress: (fraction: number) => void heard.push([name, fraction]) });

    const shares = [await place.join(listen("a")), await place.join(listen("b"))];
    place.tell?.(0.5);
    place.loading.open();
    await Promise.all(shares.map((share) => share.loaded()));
    expect(heard).toEqual([
      ["a", 0.5],
      ["b", 0.5],
      ["b", 1],
    ]);

    heard.length = 0;
    const late = await place.join(listen("late"));
    await late.loaded();
    expect(heard).toEqual([["late", 1]]);
  });
});

describe("an abort", () => {
  it("of one who waits ends that wait at once and nothing else", async () => {
    const place = new Place();
    place.loading = new Gate();
    const leaving = new AbortController();
    const one = await place.join({ signal: leaving.signal });
    const other = await place.join();
    const loaded = one.loaded();

    leaving.abort("changed my mind");
    await expect(loaded).rejects.toBe("changed my mind");
    await one.release();
    place.loading.open();

    await expect(other.loaded()).resolves.toMatchObject({ disposed: false });
    expect(place.log).toEqual(["load 1"]);
  });

  it("of all who wait aborts the load; the last one's release waits for its end", async () => {
    const place = new Place();
    place.loading = new Gate();
    const controllers = [new AbortController(), new AbortController()] as const;
    const shares = [
      await place.join({ signal: controllers[0].signal }),
      await place.join({ signal: controllers[1].signal }),
    ];
    const loads = shares.map((share) => share.loaded().catch((reason: unknown) => reason));

    controllers[0].abort("first");
    controllers[1].abort("second");
    expect(await Promise.all(loads)).toEqual(["first", "second"]);
    await shares[0]?.release();
    expect(place.log).toEqual(["load 1"]);
    await shares[1]?.release();

    expect(place.log).toEqual(["load 1", "failed 1"]);
  });

  it("while it waits for the end of another copy leaves nothing behind", async () => {
    const place = new Place();
    const share = await place.load();
    place.disposing = new Gate();
    const releasing = share.release();
    const leaving = new AbortController();
    const joining = place.join({ signal: leaving.signal });

    leaving.abort("changed my mind");
    await expect(joining).rejects.toBe("changed my mind");
    place.disposing.open();
    await releasing;

    expect(place.log).toEqual(["load 1", "dispose 1"]);
  });

  it("before it begins is no load", async () => {
    const place = new Place();

    await expect(place.join({ signal: AbortSignal.abort("no") })).rejects.toBe("no");
    expect(place.log).toEqual([]);
  });
});

describe("a copy that cannot be had", () => {
  it("because it is being disposed is waited for, and loaded anew", async () => {
    const place = new Place();
    const first = await place.load();
    place.disposing = new Gate();
    const releasing = first.release();
    const joining = place.load();
    await place.disposing.arrived();
    expect(place.log).toEqual(["load 1"]);

    place.disposing.open();
    await releasing;
    const second = await joining;

    expect(second.native).toMatchObject({ number: 2, disposed: false });
    expect(place.log).toEqual(["load 1", "dispose 1", "load 2"]);
  });

  it("because its load was aborted is waited for, and loaded anew", async () => {
    const place = new Place();
    place.loading = new Gate();
    const leaving = new AbortController();
    const first = await place.join({ signal: leaving.signal });
    const loaded = first.loaded();
    leaving.abort("changed my mind");
    await expect(loaded).rejects.toBe("changed my mind");
    const releasing = first.release();
    const joining = place.load();
    place.loading.open();

    expect((await joining).native.number).toBe(2);
    await releasing;
    expect(place.log).toEqual(["load 1", "failed 1", "load 2"]);
  });

  it("because its load failed is told to all who wait, and not kept", async () => {
    const place = new Place();
    place.loadError = new Error("no such file");
    const shares = [await place.join(), await place.join()];
    for (const share of shares) {
      await expect(share.loaded()).rejects.toThrow("no such file");
      await share.release();
    }

    place.loadError = undefined;

    expect((await place.load()).native.number).toBe(2);
  });

  it("because somebody disposed it from outside is not given to anybody, and loaded anew when the last one is gone", async () => {
    const place = new Place();
    const first = await place.load();
    await first.native.dispose();
    const joining = place.load();

    await first.release();

    expect((await joining).native).toMatchObject({ number: 2, disposed: false });
  });

  it("because its disposal failed is told to the last one; the next copy has another key, for those bytes are still there", async () => {
    const place = new Place();
    const first = await place.load();
    place.disposalError = new Error("it hangs on");
    const other = await place.load();

    await first.release();
    await expect(other.release()).rejects.toThrow("it hangs on");

    place.disposalError = undefined;
    const next = await place.load();
    expect(next.native.number).toBe(2);
    expect(next.key).not.toBe(first.key);
    expect(next.key).toBe(place.weights.keyOf(FILE));
  });
});
