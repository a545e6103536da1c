import { describe, expect, it } from "vitest";
import { isExpired, expiresAt } from "../../src/table/expiry.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

/** A lazy model that is ready, used at time 0; its TTL is 10 s, and it is looked at every second. */
async function startUsed(model: { ttlMs?: number } = { ttlMs: 10_000 }, options: { sweepIntervalMs?: number } = {}) {
  const started = await startTestSupervisor({
    models: [{ id: "a", source: "a", loadPolicy: "lazy", ...model }],
    ...options,
  });
  await started.models.generate("a", "hi");
  return started;
}

type Started = Awaited<ReturnType<typeof startUsed>>;

async function pass({ clock }: Started, ms: number, stepMs = 1_000): Promise<void> {
  for (let left = ms; left > 0; left -= stepMs) {
    clock.increment(Math.min(stepMs, left));
    await settle();
  }
}

describe("a model with a TTL", () => {
  it("is unloaded when nobody has used it for so long, and loaded again by the next request", async () => {
    const started = await startUsed();
    const { models, backend } = started;
    const events: unknown[] = [];
    models.on("model:unloading", (event) => events.push(event));
    models.on("model:unloaded", (event) => events.push(event));
    await pass(started, 9_000);
    expect(models.isLoaded("a")).toBe(true);

    await pass(started, 1_000);

    expect(models.info("a")).toMatchObject({ status: "registered", placement: {}, expiresAt: undefined });
    expect(backend.log).toEqual(["start a", "dispose a"]);
    expect(events).toEqual([
      { modelId: "a", incarnation: 2, reason: "ttl", idleMs: 10_000 },
      { modelId: "a", incarnation: 2, reason: "ttl" },
    ]);
    await models.generate("a", "again");
    expect(backend.log).toEqual(["start a", "dispose a", "start a"]);
  });

  it("tells when that will be, and moves it with every use", async () => {
    const started = await startUsed();
    const { models } = started;
    expect(models.info("a")?.expiresAt).toBe(10_000);
    await pass(started, 4_000);

    await models.embed("a", "hi").catch(() => undefined);
    await models.tokenize("a", "hi");

    expect(models.info("a")).toMatchObject({ lastUsedAt: 4_000, expiresAt: 14_000 });
    await pass(started, 9_000);
    expect(models.isLoaded("a")).toBe(true);
    await pass(started, 1_000);
    expect(models.info("a")?.status).toBe("registered");
  });

  it("has it counted from the last release, not from the start of a request", async () => {
    const started = await startUsed();
    const { models, backend } = started;
    const reply = backend.hold("generate");
    const long = models.generate("a", "long");
    await reply.arrived();
    await pass(started, 30_000);

    expect(models.info("a")).toMatchObject({ status: "ready", leases: 1, expiresAt: undefined });
    reply.open();
    await long;
    expect(models.info("a")?.expiresAt).toBe(40_000);

    await pass(started, 9_000);
    expect(models.isLoaded("a")).toBe(true);
    await pass(started, 1_000);
    expect(models.isLoaded("a")).toBe(false);
  });

  it("has it counted from the last of several releases", async () => {
    const started = await startUsed();
    const { models } = started;
    const [first, second] = [await models.acquire("a"), await models.acquire("a")];
    await pass(started, 8_000);
    first.release();
    await pass(started, 8_000);
    expect(models.info("a")).toMatchObject({ status: "ready", expiresAt: undefined });

    second.release();

    expect(models.info("a")?.expiresAt).toBe(26_000);
  });

  it("has it counted from the load if it was never used", async () => {
    const started = await startTestSupervisor({ models: [{ id: "a", source: "a", ttlMs: 10_000 }] });
    await started.models.ready();
    expect(started.models.info("a")).toMatchObject({ lastUsedAt: undefined, expiresAt: 10_000 });

    await pass(started, 10_000);

    expect(started.models.info("a")?.status).toBe("registered");
  });

  it("is never kept awake by whoever only looks, nor woken", async () => {
    const started = await startUsed();
    const { models, backend } = started;
    const look = () => {
      models.list();
      models.info("a");
      models.isLoaded("a");
      models.memory();
      models.tree();
      return models.plan("a");
    };

    for (let second = 0; second < 10; second++) {
      await look();
      await pass(started, 1_000);
    }
    expect(models.info("a")?.status).toBe("registered");
    await look();
    await pass(started, 5_000);

    expect(backend.log).toEqual(["start a", "dispose a"]);
  });

  it("is not kept awake by a request that is refused for its options", async () => {
    const started = await startUsed();
    const { models } = started;
    await pass(started, 5_000);

    const options = Object.fromEntries([["maxTokens", -1]]);
    await rejection(models.generate("a", "hi", options));

    expect(models.info("a")?.expiresAt).toBe(10_000);
  });

  it("is gone for good if it was never declared", async () => {
    const started = await startTestSupervisor();
    await started.models.load("a", "a", { ttlMs: 1_000 });

    await pass(started, 1_000);

    expect(started.models.info("a")).toBeUndefined();
    expect(await rejection(started.models.generate("a", "hi"))).toMatchObject({ code: "not_loaded" });
  });

  it("comes back with the next request even if it is eager", async () => {
    const started = await startTestSupervisor({ models: [{ id: "a", source: "a", ttlMs: 1_000 }] });
    await started.models.ready();
    await pass(started, 1_000);
    expect(started.models.info("a")?.status).toBe("registered");

    expect((await started.models.generate("a", "hi")).modelId).toBe("a");
  });

  it("gives a request that comes while it goes its next life", async () => {
    const started = await startUsed();
    const { models, backend } = started;
    const disposal = backend.hold("dispose");
    await pass(started, 10_000);
    await disposal.arrived();

    const request = models.generate("a", "late");
    await settle();
    expect(models.info("a")?.status).toBe("unloading");
    disposal.open();

    expect((await request).modelId).toBe("a");
    expect(backend.maxLiveCopies).toBe(1);
  });

  it("has the supervisor's where it has none of its own, and never goes without any", async () => {
    const { models, clock } = await startTestSupervisor({ defaultTtlMs: 5_000 });
    await models.load("default", "a");
    await models.load("own", "a", { ttlMs: 60_000 });
    await models.load("never", "a", { ttlMs: Infinity });
    await models.register("lazy", "a");
    await models.generate("lazy", "hi");
    expect(models.list().map(({ id, expiresAt }) => [id, expiresAt])).toEqual([
      ["default", 5_000],
      ["own", 60_000],
      ["never", undefined],
      ["lazy", 5_000],
    ]);

    clock.increment(5_000);
    await settle();

    expect(models.list().map(({ id, status }) => [id, status])).toEqual([
      ["own", "ready"],
      ["never", "ready"],
      ["lazy", "registered"],
    ]);
  });

  it("is not unloaded by default, however long it idles", async () => {
    const { models, clock } = await startTestSupervisor();
    await models.load("a", "a");

    clock.increment(1e12);
    await settle();

    expect(models.info("a")).toMatchObject({ status: "ready", expiresAt: undefined });
  });
});

describe("the sweep", () => {
  it.each([100, 1_000, 7_000])(
    "every %d ms lets no model outlive its TTL by more than one interval",
    async (interval) => {
      for (const offset of [0, 1, interval / 2, interval - 1]) {
        const started = await startUsed({ ttlMs: 10_000 }, { sweepIntervalMs: interval });
        started.clock.increment(offset);
        await settle();
        await started.models.generate("a", "again");

        await pass(started, 10_000 - 1, interval);
        expect(started.models.isLoaded("a")).toBe(true);
        await pass(started, interval + 1, interval);

        expect(started.models.isLoaded("a")).toBe(false);
      }
    },
  );

  it("looks at all models with one timer, which only runs while there is something to look at", async () => {
    const { models, clock } = await startTestSupervisor({ defaultTtlMs: 1_000 });
    const timers = countTimers(clock);
    await models.register("a", "a");
    await models.register("b", "b");
    expect(timers.open).toBe(0);

    await Promise.all([models.generate("a", "hi"), models.generate("b", "hi")]);
    expect(timers.open).toBe(1);
    const before = timers.set;
    for (let request = 0; request < 100; request++) await models.generate("a", "hi");
    expect(timers.set).toBe(before);

    clock.increment(1_000);
    await settle();
    expect(models.list().map(({ status }) => status)).toEqual(["registered", "registered"]);
    expect(timers.open).toBe(0);
  });

  it("ends when the last model with a TTL is unloaded", async () => {
    const { models, clock } = await startTestSupervisor({ defaultTtlMs: 1_000 });
    const timers = countTimers(clock);
    await models.load("a", "a");
    expect(timers.open).toBe(1);

    await models.unload("a");

    expect(timers.open).toBe(0);
  });

  it("is over when the supervisor is", async () => {
    const { models, clock } = await startTestSupervisor({ defaultTtlMs: 1_000 });
    const timers = countTimers(clock);
    await models.load("a", "a");
    expect(timers.open).toBe(1);

    await models.close();

    expect(timers.open).toBe(0);
  });
});

/** How many timers of a clock are set and not yet due or cleared. */
function countTimers(clock: {
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}) {
  const open = new Set<unknown>();
  const counts = {
    set: 0,
    get open() {
      return open.size;
    },
  };
  const set = clock.setTimeout.bind(clock);
  const clear = clock.clearTimeout.bind(clock);
  clock.setTimeout = (callback, delayMs) => {
    const handle: unknown = set(() => {
      open.delete(handle);
      callback();
    }, delayMs);
    counts.set += 1;
    open.add(handle);
    return handle;
  };
  clock.clearTimeout = (handle) => {
    open.delete(handle);
    clear(handle);
  };
  return counts;
}

describe("expiresAt", () => {
  const idle = { ttlMs: 100, loadedAt: 1_000, lastUsedAt: undefined, leases: 0 };

  it.each([
    ["the load, if it was never used", idle, 1_100],
    ["the last use", { ...idle, lastUsedAt: 1_500 }, 1_600],
    ["the load, if the clock was set back since", { ...idle, lastUsedAt: 900 }, 1_100],
  ])("counts from %s", (_what, model, at) => {
    expect(expiresAt(model)).toBe(at);
    expect([isExpired(model, at - 1), isExpired(model, at)]).toEqual([false, true]);
  });

  it.each([
    ["in use", { ...idle, leases: 1 }],
    ["without a TTL", { ...idle, ttlMs: Infinity }],
  ])("is never for a model %s", (_what, model) => {
    expect(expiresAt(model)).toBeUndefined();
    expect(isExpired(model, Number.MAX_SAFE_INTEGER)).toBe(false);
  });
});
