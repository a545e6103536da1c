import { describe, expect, it } from "vitest";
import { LoadFailedError } from "../../src/index.js";
import { afterFailure, waitMs } from "../../src/manager/backoff.js";
import type { Failures } from "../../src/table/entry.js";
import { FakeBackend } from "../../src/testing/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** A lazy model whose loads fail so many times, and one that is well. */
async function startFailing(times = Infinity) {
  const backend = new FakeBackend();
  const starts = backend.hold("start", "bad");
  starts.open();
  backend.fail("start", new Error("broken"), "bad", times);
  const started = await startTestSupervisor({
    backend,
    models: [
      { id: "bad", source: "bad", loadPolicy: "lazy" },
      { id: "good", source: "good", loadPolicy: "lazy" },
    ],
  });
  await settle();
  return { ...started, tries: () => starts.arrivals };
}

type Started = Awaited<ReturnType<typeof startFailing>>;

/** Asks until the model is not tried any more; returns how long it is not to be tried. */
async function openCircuit({ models, clock, tries }: Started): Promise<number> {
  for (let ask = 0; ask < 100; ask++) {
    const error = await rejection(models.generate("bad", "hi"));
    if (tries() === 3) {
      const { retryAfterMs } = asFailure(await rejection(models.generate("bad", "hi")));
      expect(asFailure(error).code).toBe("load_failed");
      return retryAfterMs ?? 0;
    }
    clock.increment(2_000);
  }
  throw new Error("it was not tried three times");
}

function asFailure(error: unknown): LoadFailedError {
  if (!(error instanceof LoadFailedError)) throw new TypeError(`Not a failed load: ${String(error)}`);
  return error;
}

describe("a model whose loads fail", () => {
  it("is tried three times, then not again for half a minute", async () => {
    const started = await startFailing();
    const { models, clock, tries } = started;
    const retryAfterMs = await openCircuit(started);
    expect(retryAfterMs).toBeGreaterThanOrEqual(30_000);
    expect(retryAfterMs).toBeLessThanOrEqual(33_000);

    clock.increment(retryAfterMs - 1);
    await rejection(models.generate("bad", "hi"));
    expect(tries()).toBe(3);
    clock.increment(1);
    await rejection(models.generate("bad", "hi"));

    expect(tries()).toBe(4);
  });

  it("is left alone for longer after each try, up to a quarter of an hour", async () => {
    const started = await startFailing();
    const { models, clock } = started;
    let wait = await openCircuit(started);

    const waits = [wait];
    for (let round = 0; round < 8; round++) {
      clock.increment(wait);
      await rejection(models.generate("bad", "hi"));
      wait = asFailure(await rejection(models.generate("bad", "hi"))).retryAfterMs ?? 0;
      waits.push(wait);
    }

    for (const [index, shortest] of [30, 60, 120, 240, 480, 900, 900, 900, 900].entries()) {
      expect(waits[index]).toBeGreaterThanOrEqual(shortest * 1_000);
      expect(waits[index]).toBeLessThanOrEqual(shortest * 1_100);
    }
  });

  it("tells who comes in between at once what went wrong, and when to come again", async () => {
    const started = await startFailing();
    const wait = await openCircuit(started);
    const asks = [
      started.models.generate("bad", "hi"),
      started.models.embed("bad", "hi"),
      started.models.acquire("bad"),
      started.models.tokenize("bad", "hi"),
      started.models.stream("bad", "hi").result,
    ];

    for (const ask of asks) {
      const error = await rejection(ask);
      expect(error).toMatchObject({
        code: "load_failed",
        modelId: "bad",
        phase: "start",
        retryAfterMs: wait,
        retryable: true,
      });
      expect(asFailure(error).cause).toMatchObject({ code: "load_failed", cause: { message: "broken" } });
    }
    expect(started.tries()).toBe(3);
    expect(started.models.info("bad")).toMatchObject({ status: "error", error: { code: "load_failed" } });
  });

  it("does not touch others", async () => {
    const started = await startFailing();
    await openCircuit(started);

    expect((await started.models.generate("good", "hi")).modelId).toBe("good");
    expect(started.models.info("good")?.status).toBe("ready");
  });

  it("is tried again at once by hand, and forgiven", async () => {
    const started = await startFailing(3);
    const { models, tries } = started;
    await openCircuit(started);

    expect(await models.load("bad")).toMatchObject({ status: "ready" });

    expect(tries()).toBe(4);
    expect((await models.generate("bad", "hi")).modelId).toBe("bad");
  });

  it("begins to count again where the try by hand fails", async () => {
    const started = await startFailing();
    const { models, clock, tries } = started;
    await openCircuit(started);

    expect(await rejection(models.load("bad"))).toMatchObject({ code: "load_failed", retryAfterMs: undefined });
    clock.increment(1_000);
    await rejection(models.generate("bad", "hi"));

    expect(tries()).toBe(5);
  });

  it("is tried by one request for all who come together, and answered once for each", async () => {
    const started = await startFailing();

    const errors = await Promise.all(Array.from({ length: 10 }, () => rejection(started.models.generate("bad", "hi"))));

    expect(started.tries()).toBe(1);
    for (const error of errors) expect(error).toMatchObject({ code: "load_failed", retryAfterMs: undefined });
  });

  it("is well again once a load has succeeded", async () => {
    const started = await startFailing(2);
    const { models, clock, tries } = started;
    for (let ask = 0; ask < 3; ask++) {
      await models.generate("bad", "hi").catch(() => undefined);
      clock.increment(2_000);
    }
    expect([tries(), models.info("bad")?.status]).toEqual([3, "ready"]);

    await models.unload("bad");
    await models.generate("bad", "hi");

    expect(tries()).toBe(4);
  });

  it("leaves nothing behind", async () => {
    const started = await startFailing();
    await openCircuit(started);

    expect(started.backend.liveCopies).toBe(0);
    expect(started.models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
    expect(started.models.tree().children.flatMap(({ children }) => children)).toEqual([]);
  });

  it("is not tried by a request at all if it is eager", async () => {
    const backend = new FakeBackend();
    backend.fail("start", new Error("broken"), "a", 1);
    const { models, clock } = await startTestSupervisor({ backend, models: [{ id: "a", source: "a" }] });
    await rejection(models.ready());
    clock.increment(1e6);

    expect(await rejection(models.generate("a", "hi"))).toMatchObject({
      code: "not_ready",
      status: "error",
      cause: { code: "load_failed" },
    });
    expect(await models.load("a")).toMatchObject({ status: "ready" });
  });

  it("is not held back because there was no room", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 10,
      fake: { models: { a: { ramBytes: 6 }, b: { ramBytes: 6 } } },
      models: [
        { id: "a", source: "a", loadPolicy: "lazy" },
        { id: "b", source: "b", loadPolicy: "lazy" },
      ],
    });
    await models.generate("a", "hi");
    for (let ask = 0; ask < 5; ask++)
      expect(await rejection(models.generate("b", "hi"))).toMatchObject({ code: "insufficient_memory" });

    await models.unload("a");

    expect((await models.generate("b", "hi")).modelId).toBe("b");
  });
});

describe("a model that crashes soon after each load", () => {
  it("is held back like one whose loads fail", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      models: [{ id: "a", source: "a", loadPolicy: "lazy" }],
    });
    for (let life = 0; life < 3; life++) {
      await models.generate("a", "hi");
      backend.crash("a");
      await settle();
      if (life < 2) clock.increment(2_000);
    }

    const error = asFailure(await rejection(models.generate("a", "hi")));

    expect(error).toMatchObject({ code: "load_failed", cause: { code: "backing_crashed" } });
    expect(error.retryAfterMs).toBeGreaterThanOrEqual(30_000);
    expect(backend.log.filter((line) => line === "start a")).toHaveLength(3);
  });

  it("is loaded again after one crash, once it has waited a little", async () => {
    const { models, backend, clock } = await startTestSupervisor({
      models: [{ id: "a", source: "a", loadPolicy: "lazy" }],
    });
    for (let life = 0; life < 5; life++) {
      expect((await models.generate("a", "hi")).modelId).toBe("a");
      clock.increment(60_000);
      backend.crash("a");
      await settle();
      clock.increment(1_000);
    }
  });
});

describe("afterFailure", () => {
  /** The wait after so many failures, by chance. */
  function waitAfter(count: number, chance: number): number {
    let failures: Failures | undefined;
    for (let failure = 0; failure < count; failure++) failures = afterFailure(failures, 0, chance);
    return waitMs(failures, 0);
  }

  it.each([
    [0, 0, 0],
    [1, 0, 0],
    [1, 0.5, 500],
    [1, 1, 1_000],
    [2, 0, 0],
    [2, 1, 2_000],
    [3, 0, 30_000],
    [3, 1, 33_000],
    [4, 0, 60_000],
    [8, 0, 900_000],
    [100, 1, 990_000],
    [5_000, 0, 900_000],
  ])("after %d failures, by chance %d: %d ms", (count, chance, ms) => {
    expect(waitAfter(count, chance)).toBe(ms);
  });

  it("is over when its time has come, and ever after", () => {
    const failures = afterFailure(undefined, 1_000, 0.5);

    expect([1_000, 1_499, 1_500, 1e9].map((now) => waitMs(failures, now))).toEqual([500, 1, 0, 0]);
  });

  it("says nothing once the clock was set back", () => {
    const failures = afterFailure(undefined, 1e9, 1);

    expect(waitMs(failures, 5)).toBe(0);
  });
});
