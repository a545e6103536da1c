import fc from "fast-check";
import { settle } from "../test-supervisor.js";
import type { CodeUnderTest } from "./code-under-test.js";
import { checkAlways, checkEnd, checkQuiet, checkSettled } from "./laws.js";
import { begin, plannedSteps } from "./steps.js";
import type { PlannedStep } from "./steps.js";
import { plans, World } from "./world.js";
import type { Plan } from "./world.js";

const STEPS = 100;

/** The property: whatever is called in whatever order, no law is broken, from the start to after the end. */
export function lawfulWalks(code: CodeUnderTest) {
  return fc.asyncProperty(
    plans,
    // a step that a failure does not need becomes none
    fc.array(fc.option(plannedSteps, { freq: 1_000 }), { minLength: STEPS, maxLength: STEPS, size: "max" }),
    (plan, steps) => walk(plan, steps, code),
  );
}

async function walk(plan: Plan, steps: readonly (PlannedStep | null)[], code: CodeUnderTest): Promise<void> {
  const world = new World(plan, code);
  try {
    await world.start();
    for (const step of steps) {
      if (step === null) continue;
      begin(world, step);
      await pause(world, step.gap);
    }
    await settle();
    checkSettled(world);
    await bringToEnd(world);
    checkEnd(world);
  } finally {
    world.end();
  }
}

async function pause(world: World, gap: number | "settled"): Promise<void> {
  if (gap === "settled") {
    await settle();
    checkSettled(world);
    return;
  }
  for (let turn = 0; turn < gap; turn++) {
    await Promise.resolve();
    checkAlways(world);
  }
}

async function bringToEnd(world: World): Promise<void> {
  const { models, plan } = world;
  world.isEnding = true;
  world.nextToBreak = undefined;
  if (plan.ending !== "close-first") openAll(world);
  if (plan.ending === "quiet") {
    releaseAll(world);
    await passTime(world);
    checkQuiet(world);
  }
  world.order("close", models.close({ timeoutMs: 10 }));
  await settle();
  openAll(world);
  await passTime(world);
  releaseAll(world); // those whose native object was taken: nothing else ends them
  await passTime(world);
}

function openAll({ gates, backend, devices }: World): void {
  backend.deviceList = devices;
  for (const gate of Object.values(gates)) gate.open();
}

function releaseAll({ leases, threads, clock }: World): void {
  for (const thread of threads) {
    thread.resume();
    thread.release(clock.now());
  }
  for (const { lease } of leases.splice(0)) lease.release();
}

/** So much that whoever waits for anything has had enough. */
async function passTime(world: World): Promise<void> {
  for (let times = 0; times < 12; times++) {
    await settle();
    world.eventsInTurn = 0;
    world.clock.increment(10_000);
  }
  await settle();
}
