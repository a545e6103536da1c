import { getEventListeners } from "node:events";
import type { Device, Placement } from "../../../src/index.js";
import type { Life, World } from "./world.js";

/** Thrown at the first broken law. */
class Violation extends Error {}

function law(holds: boolean, what: () => string): void {
  if (!holds) throw new Violation(what());
}

/** What holds between any two microtasks. */
export function checkAlways(world: World): void {
  const { models, backend, lives, violations, overhang } = world;
  law(violations.length === 0, () => violations.join("\n"));
  law(backend.disposalsInFlight === 0, () => "a backing was disposed while a request ran on it");

  const report = models.memory();
  const rows = models.list();
  for (const { device, limitBytes, reservedBytes } of report.devices) {
    const limit = Math.max(limitBytes ?? Infinity, overhang.get(device) ?? 0);
    law(reservedBytes <= limit, () => `${device}: ${reservedBytes} reserved, ${limit} allowed`);
    overhang.set(device, Math.min(reservedBytes, overhang.get(device) ?? 0));
    const held = backend.backings().reduce((sum, backing) => {
      const { ramBytes, gpuWeightsBytes, gpuContextBytes } = backing.memory();
      return sum + bytesOn(device, { ram: ramBytes, "gpu:0": gpuWeightsBytes + gpuContextBytes });
    }, 0);
    law(held <= reservedBytes, () => `${device}: ${held} in use, but only ${reservedBytes} reserved`);
    const listed =
      sumOn(
        device,
        rows.filter(({ status }) => status !== "error" && status !== "registered"),
      ) + sumOn(device, report.unreleased);
    law(listed === reservedBytes, () => `${device}: ${reservedBytes} reserved, ${listed} by models that are told`);
  }

  for (const { id, leases } of rows) law(leases >= 0, () => `${id} has ${leases} leases`);
  const open = new Set<string>();
  const inCharge = new Set<string>();
  for (const life of lives) {
    const { modelId, incarnation, live, backing, disposals } = life;
    const name = `${modelId}#${incarnation}`;
    law(disposals <= 1, () => `${name} was disposed ${disposals} times`);
    if (live === undefined) continue;
    const { leases, isReady } = live.block;
    law(leases >= 0, () => `${name} has ${leases} leases`);
    const isAlive = backend.backings().some((one) => one === backing);
    law(isAlive || leases === 0, () => `${name} is gone and has ${leases} leases`);
    if (isInCharge(life)) {
      law(!inCharge.has(modelId), () => `two copies of ${modelId} are alive`);
      inCharge.add(modelId);
    }
    if (!isReady) continue;
    law(isAlive, () => `${name} is gone and takes requests`);
    law(!open.has(modelId), () => `two lives of ${modelId} take requests`);
    open.add(modelId);
    const row = models.info(modelId);
    law(row?.status === "ready" && row.incarnation === incarnation, () => `${name} takes requests behind its row`);
  }
}

/** It serves its model, or is about to be disposed. */
function isInCharge({ isDisposalOrdered, isStuck, isOrphan, backing }: Life): boolean {
  return !(isDisposalOrdered || isStuck || isOrphan || backing.hasEnded);
}

/** What holds when all has run that can run without time or gates. */
export function checkSettled(world: World): void {
  checkAlways(world);
  const { models, backend, clock, plan, calls, lives } = world;
  const now = clock.now();
  const rows = models.list();
  for (const { id, status, incarnation, expiresAt } of rows) {
    if (status === "ready") law(backend.isAlive(id, incarnation), () => `${id}#${incarnation} is ready and not alive`);
    if (expiresAt === undefined || now < expiresAt) continue;
    const name = `${id}#${incarnation} that expired at ${expiresAt}`;
    const since = world.overdueSince.get(name) ?? now; // the clock may have jumped
    world.overdueSince.set(name, since);
    law(now - since < plan.sweepIntervalMs, () => `${name} is still there at ${now}`);
  }
  for (const { id, status, incarnation } of rows) {
    if (status !== "loading" || !world.loadsForRequests.has(`${id}#${incarnation}`)) continue;
    const isWanted = calls.some(({ waitsFor, isSettled }) => waitsFor === id && !isSettled);
    law(isWanted, () => `${id}#${incarnation} is loaded for requests, and none waits`);
  }
  for (const { label, controller, isSettled } of calls)
    law(isSettled || controller?.signal.aborted !== true, () => `${label}: its caller has left and was not answered`);
  const isQuiet =
    world.loadsInEngine === 0 &&
    models.memory().unreleased.length === 0 &&
    rows.every(({ status }) => status === "ready" || status === "registered" || status === "error");
  if (!isQuiet) return;
  for (const { modelId, incarnation, listeners, isOrphan } of lives)
    law(listeners === 0 || isOrphan, () => `${listeners} listen to ${modelId}#${incarnation}, and nobody waits`);
  const isIdle = calls.every((call) => call.isSettled) && rows.every(({ leases }) => leases === 0);
  if (isIdle) law(clock.pending.size <= 1, () => `${clock.pending.size} timers run, and nobody waits for anything`);
}

/** What holds once all gates are open, all leases are released and much time has passed. */
export function checkQuiet(world: World): void {
  checkSettled(world);
  checkCalls(world);
  for (const { id, status, leases } of world.models.list()) {
    law(leases === 0, () => `${id} has ${leases} leases in the end`);
    law(status !== "loading" && status !== "unloading", () => `${id} is ${status} for ever`);
  }
}

/** What holds after the end. */
export function checkEnd(world: World): void {
  const { models, backend, lives, clock, violations } = world;
  law(violations.length === 0, () => violations.join("\n"));
  checkCalls(world);
  const failed = lives.filter(({ disposalFailed }) => disposalFailed);
  for (const { modelId, incarnation, live, disposals, disposalFailed, listeners, isOrphan } of lives) {
    const name = `${modelId}#${incarnation}`;
    law(live === undefined || live.block.leases === 0, () => `${name} has ${live?.block.leases} leases after the end`);
    law(disposals === 1 || disposalFailed, () => `${name} was disposed ${disposals} times`);
    law(listeners === 0 || isOrphan, () => `${listeners} still listen to ${name}`);
  }
  law(backend.disposalsInFlight === 0, () => "a backing was disposed while a request ran on it");
  law(backend.liveCopies === failed.length, () => `${backend.liveCopies} backings are alive after the end`);
  const { devices, unreleased } = models.memory();
  law(unreleased.length === failed.length, () => `after the end memory is held by ${JSON.stringify(unreleased)}`);
  for (const { device, reservedBytes } of devices)
    law(reservedBytes === sumOn(device, unreleased), () => `${device}: ${reservedBytes} reserved after the end`);
  law(models.list().length === 0, () => "models are listed after the end");
  law(clock.pending.size === 0, () => `${clock.pending.size} timers are left after the end`);
}

function checkCalls({ calls }: World): void {
  const open = calls.filter(({ isSettled }) => !isSettled).map(({ label }) => label);
  law(open.length === 0, () => `never answered: ${open.join(", ")}`);
  for (const { label, controller } of calls) {
    const listeners = controller ? getEventListeners(controller.signal, "abort").length : 0;
    law(listeners === 0, () => `${label}: ${listeners} listeners are left on its signal`);
  }
}

function sumOn(device: Device, rows: readonly { readonly placement: Placement }[]): number {
  return rows.reduce((sum, { placement }) => sum + bytesOn(device, placement), 0);
}

function bytesOn(device: Device, placement: Placement): number {
  if (device !== "total") return placement[device] ?? 0;
  return Object.values(placement).reduce<number>((sum, bytes) => sum + (bytes ?? 0), 0);
}
