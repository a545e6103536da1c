import { createActor, fromCallback } from "xstate";
import type { EventObject } from "xstate";
import { describe, expect, it } from "vitest";
import { CHILDREN, rootMachine } from "../../src/supervisor/root-machine.js";
import type { ChildName } from "../../src/supervisor/root-machine.js";

/** The real root over children that record their life and fail when told to. */
function startRoot() {
  const log: string[] = [];
  let now = 0;
  const restarts: string[] = [];
  const child = (name: ChildName) =>
    fromCallback<EventObject>(({ receive }) => {
      log.push(`start ${name}`);
      receive(() => {
        throw new Error(`${name} broke`);
      });
      return () => log.push(`stop ${name}`);
    });
  // the children are replaced, so what their real ones would be given is never looked at
  const machine = rootMachine.provide({
    actors: {
      backings: child("backings") as never,
      manager: child("manager") as never,
      loads: child("loads") as never,
    },
  });
  const root = createActor(machine, {
    input: {
      manager: undefined as never,
      now: () => now,
      onFailed: (name) => void restarts.push(`${name} failed`),
      onRestarted: (name) => void restarts.push(`${name} restarted`),
    },
  });
  const ends: string[] = [];
  root.subscribe({ error: () => ends.push("error"), complete: () => ends.push("complete") });
  root.start();
  return {
    root,
    log,
    ends,
    restarts,
    advance: (ms: number) => (now += ms),
    crash: (name: ChildName) => root.system.get(name)?.send({ type: "break" }),
    takeLog: () => log.splice(0),
  };
}

describe("the root of the tree", () => {
  it("starts backings, manager and loads, in the order in which they depend on each other", () => {
    const { log, root } = startRoot();

    expect(CHILDREN).toEqual(["backings", "manager", "loads"]);
    expect(log).toEqual(["start backings", "start manager", "start loads"]);
    expect(CHILDREN.every((name) => root.system.get(name) !== undefined)).toBe(true);
  });

  it.each([
    ["backings", ["stop loads", "stop manager", "start backings", "start manager", "start loads"]],
    ["manager", ["stop loads", "start manager", "start loads"]],
    ["loads", ["start loads"]],
  ] as const)("restarts %s and what depends on it, and nothing else", (name, expected) => {
    const { crash, takeLog, restarts } = startRoot();
    takeLog();

    crash(name);

    expect(takeLog().filter((line) => line !== `stop ${name}`)).toEqual(expected);
    expect(restarts).toEqual([`${name} failed`, `${name} restarted`]);
  });

  it("survives three failures within five seconds and ends at the fourth, with all children stopped", () => {
    const { root, crash, ends, log } = startRoot();
    for (let time = 0; time < 3; time++) crash("manager");
    expect(root.getSnapshot().value).toBe("running");

    crash("manager");

    expect(root.getSnapshot()).toMatchObject({ value: "exhausted", context: { failure: { child: "manager" } } });
    expect(ends).toEqual(["complete"]);
    expect(log.filter((line) => line.startsWith("start backings"))).toHaveLength(1);
    expect(log.slice(-2).toSorted()).toEqual(["stop backings", "stop loads"]);
  });

  it("forgets failures that are five seconds old", () => {
    const { root, crash, advance } = startRoot();

    for (let time = 0; time < 20; time++) {
      crash("manager");
      advance(1_700);
    }

    expect(root.getSnapshot().value).toBe("running");
  });

  it("stops all its children when told to end", () => {
    const { root, takeLog, ends } = startRoot();
    takeLog();

    root.send({ type: "tree.stop" });

    expect(root.getSnapshot().value).toBe("closed");
    expect(takeLog().toSorted()).toEqual(["stop backings", "stop loads", "stop manager"]);
    expect(ends).toEqual(["complete"]);
  });
});
