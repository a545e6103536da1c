import { SimulatedClock } from "xstate";
import { onTestFinished, vi } from "vitest";
import { ModelSupervisor } from "../../src/index.js";
import type { ModelManager, ModelSupervisorOptions } from "../../src/index.js";
import { Executor } from "../../src/manager/executor.js";
import { FakeBackend } from "../../src/testing/index.js";
import type { FakeBackendOptions } from "../../src/testing/index.js";

export interface TestSupervisor {
  readonly models: ModelManager;
  readonly backend: FakeBackend;
  readonly clock: SimulatedClock;
  /** What the logger was told. */
  readonly warnings: string[];
}

let started = 0;

/** The real tree with the fake backend and a simulated clock; closed when the test ends. */
export async function startTestSupervisor(
  options: Omit<ModelSupervisorOptions, "backend" | "clock" | "logger"> & {
    fake?: FakeBackendOptions;
    backend?: FakeBackend;
  } = {},
): Promise<TestSupervisor> {
  const { fake, backend = new FakeBackend(fake), ...rest } = options;
  const clock = new SimulatedClock();
  const warnings: string[] = [];
  const logger = { warn: (message: string) => void warnings.push(message) };
  const models = await ModelSupervisor.start({
    name: `test-${++started}`,
    memoryBudget: "unlimited",
    backend,
    clock,
    logger,
    ...rest,
  });
  onTestFinished(async () => {
    void models.close({ timeoutMs: 0 });
    // a test may leave requests that ignore their abort: then the deadline of the disposal ends the wait
    for (let passed = 0; passed < 3; passed++) {
      await new Promise((resolve) => setImmediate(resolve));
      clock.increment(60_000);
    }
    await models.closed;
  });
  return { models, backend, clock, warnings };
}

/** Lets everything run that can run without time or gates. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** Makes the manager die of a bug at the next event. */
export function breakManagerOnce(): void {
  vi.spyOn(Executor.prototype, "handle").mockImplementationOnce(() => {
    throw new Error("a bug in the manager");
  });
}

/** The code of the typed error that a promise rejects with; fails the test if it resolves. */
export async function rejection(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    (value) => Promise.reject(new Error(`resolved with ${JSON.stringify(value)}`)),
    (error: unknown) => error,
  );
}
