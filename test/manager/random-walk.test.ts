import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import type { Lease, ModelManager } from "../../src/index.js";
import { ModelSupervisor } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { FakeBackend } from "../../src/testing/index.js";
import type { Gate } from "../../src/testing/index.js";
import { SimulatedClock } from "xstate";
import { settle } from "../support/test-supervisor.js";

/**
 * Random lives of models on the real tree with the fake backend: whatever is called in whatever order, the books stay
 * right. More runs: `RANDOM_WALK_RUNS=2000 npx vitest run test/manager/random-walk.test.ts`.
 */
const RUNS = Number(process.env["RANDOM_WALK_RUNS"] ?? 60);
const STEPS = 60;
const UNIT = 1e9;
const LIMIT = 10 * UNIT;
const IDS = ["a", "b", "c", "d"] as const;
const BYTES: Record<(typeof IDS)[number], number> = { a: 2, b: 3, c: 4, d: 6 };

const id = fc.constantFrom(...IDS);
const step = fc.oneof(
  { weight: 12, arbitrary: fc.record({ do: fc.constant("load" as const), id }) },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant("unload" as const),
      id,
      force: fc.boolean(),
      timeoutMs: fc.constantFrom(0, 10, 100),
    }),
  },
  { weight: 9, arbitrary: fc.record({ do: fc.constant("acquire" as const), id }) },
  { weight: 9, arbitrary: fc.record({ do: fc.constant("release" as const), index: fc.nat(5) }) },
  { weight: 9, arbitrary: fc.record({ do: fc.constant("generate" as const), id, abort: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("crash" as const), id }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("cancel-load" as const), index: fc.nat(3) }) },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant("pass" as const),
      gate: fc.constantFrom("start" as const, "generate" as const, "dispose" as const),
    }),
  },
  { weight: 6, arbitrary: fc.record({ do: fc.constant("tick" as const), ms: fc.constantFrom(1, 50, 31_000) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("break-manager" as const) }) },
);
const gap = fc.oneof(fc.constant("settled" as const), fc.nat(13));
type Step = typeof step extends fc.Arbitrary<infer S> ? S : never;

interface World {
  readonly models: ModelManager;
  readonly backend: FakeBackend;
  readonly clock: SimulatedClock;
  readonly gates: Record<"start" | "generate" | "dispose", Gate>;
  readonly leases: Lease[];
  readonly loads: AbortController[];
  readonly outcomes: Promise<unknown>[];
}

let worlds = 0;

async function startWorld(): Promise<World> {
  const backend = new FakeBackend({
    models: Object.fromEntries(IDS.map((name) => [name, { ramBytes: BYTES[name] * UNIT }])),
  });
  const clock = new SimulatedClock();
  // the hard case: an engine that does not hear its aborts
  const stubborn = { ignoreAbort: true };
  const gates = {
    start: backend.hold("start", undefined, stubborn),
    generate: backend.hold("generate", undefined, stubborn),
    dispose: backend.hold("dispose"),
  };
  const models = await ModelSupervisor.start({
    name: `walk-${++worlds}`,
    backend,
    clock,
    memoryBudget: LIMIT,
    logger: { warn: () => undefined },
  });
  return { models, backend, clock, gates, leases: [], loads: [], outcomes: [] };
}

/** `gap`: how many microtasks pass before the next step; most faults live in the few after something has ended. */
async function take(world: World, taken: Step, gap: number | "settled"): Promise<void> {
  const { models, backend, clock, gates, leases, loads, outcomes } = world;
  switch (taken.do) {
    case "load": {
      const controller = new AbortController();
      loads.push(controller);
      outcomes.push(models.load(taken.id, taken.id, { signal: controller.signal }).catch(typed));
      break;
    }
    case "unload":
      outcomes.push(models.unload(taken.id, { force: taken.force, timeoutMs: taken.timeoutMs }).catch(typed));
      break;
    case "acquire":
      outcomes.push(models.acquire(taken.id).then((lease) => leases.push(lease), typed));
      break;
    case "release":
      leases.splice(taken.index, 1)[0]?.release();
      break;
    case "generate":
      outcomes.push(models.generate(taken.id, "hi", taken.abort ? { timeoutMs: 20 } : {}).catch(typed));
      break;
    case "crash":
      if (models.isLoaded(taken.id)) backend.crash(taken.id);
      break;
    case "cancel-load":
      loads.splice(taken.index, 1)[0]?.abort(new DOMException("cancelled", "AbortError"));
      break;
    case "pass":
      gates[taken.gate].pass();
      break;
    case "tick":
      clock.increment(taken.ms);
      break;
    case "break-manager": {
      const broken = vi.spyOn(Executor.prototype, "handle").mockImplementationOnce(() => {
        throw new Error("a bug in the manager");
      });
      outcomes.push(models.setDefault("a").catch(typed));
      broken.mockRestore();
      clock.increment(6_000); // so that the restart limit is not what is tested
      break;
    }
  }
  if (gap === "settled") await settle();
  else for (let turn = 0; turn < gap; turn++) await Promise.resolve();
}

/** Every failure is typed, or the caller's own abort. */
function typed(error: unknown): void {
  if (error instanceof DOMException) return;
  expect(error).toMatchObject({ code: expect.any(String), retryable: expect.any(Boolean) });
}

function check({ models, backend }: World): void {
  const { devices, unreleased } = models.memory();
  const [total] = devices;
  const rows = models.list();
  const reserved = rows.reduce(
    (sum, row) => sum + (row.status === "error" || row.status === "registered" ? 0 : (row.placement.ram ?? 0)),
    0,
  );
  const lingering = unreleased.reduce((sum, { placement }) => sum + (placement.ram ?? 0), 0);

  expect(total?.reservedBytes).toBeLessThanOrEqual(LIMIT);
  expect(total?.reservedBytes).toBe(reserved + lingering);
  expect(total?.reservedBytes).toBeGreaterThanOrEqual(backend.liveBytes);
  expect(backend.disposalsInFlight).toBe(0);
  expect(
    backend.log.filter((line) => line.startsWith("start")).length -
      backend.log.filter((line) => line.startsWith("dispose")).length,
  ).toBe(backend.liveCopies);
  for (const row of rows) {
    expect(row.leases).toBeGreaterThanOrEqual(0);
    if (row.status === "ready") expect(backend.isAlive(row.id, row.incarnation)).toBe(true);
  }
}

describe("whatever is called in whatever order", () => {
  it(
    "memory is never overbooked, nothing is disposed in use, and everything is given back in the end",
    { timeout: 120_000 },
    async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(fc.tuple(step, gap), { minLength: 10, maxLength: STEPS }), async (steps) => {
          const world = await startWorld();
          const { models, backend, clock, gates, leases, outcomes } = world;
          for (const [taken, pause] of steps) {
            await take(world, taken, pause);
            if (pause === "settled") check(world);
          }
          await settle();
          check(world);

          for (const gate of Object.values(gates)) gate.open();
          // with an odd number of them, the close has to end the leases
          if (leases.length % 2 === 0) for (const lease of leases) lease.release();
          void models.close({ timeoutMs: 10 });
          await settle();
          clock.increment(10);
          await models.closed;
          await Promise.all(outcomes);
          await settle();

          expect(backend.liveCopies).toBe(0);
          expect(models.memory()).toMatchObject({ devices: [{ reservedBytes: 0 }], unreleased: [] });
          expect(backend.disposalsInFlight).toBe(0);
        }),
        { numRuns: RUNS },
      );
    },
  );
});
