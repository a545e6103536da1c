import { describe, expect, it } from "vitest";
import { createActor } from "xstate";
import { temporaryChildrenMachine } from "../../src/supervisor/temporary-children.js";

describe("temporary children", () => {
  it("leave nothing in the machine when they have ended, been stopped or thrown", async () => {
    const parent = createActor(temporaryChildrenMachine).start();
    const aborted: string[] = [];
    const start = (childId: string, work: (signal: AbortSignal) => Promise<void>) =>
      parent.send({ type: "child.start", childId, work });
    start("ends", () => Promise.resolve());
    start("throws", () => Promise.reject(new Error("no")));
    start("waits", (signal) => {
      signal.addEventListener("abort", () => aborted.push("waits"));
      return new Promise(() => undefined);
    });
    await new Promise((resolve) => setImmediate(resolve));
    expect(Object.keys(parent.getSnapshot().children)).toEqual(["waits"]);

    parent.send({ type: "child.stop", childId: "waits" });

    expect(aborted).toEqual(["waits"]);
    expect(parent.getSnapshot().children).toEqual({});
    expect(parent.getSnapshot().status).toBe("active");
  });

  it("never end by an event of a name of their own, of which xstate would keep something for ever", async () => {
    const types = new Set<string>();
    const parent = createActor(temporaryChildrenMachine, {
      inspect: (inspected) => {
        if (inspected.type === "@xstate.event") types.add(inspected.event.type);
      },
    }).start();
    for (let child = 0; child < 20; child++)
      parent.send({ type: "child.start", childId: `load:a#${child}`, work: () => Promise.resolve() });
    await new Promise((resolve) => setImmediate(resolve));

    expect([...types].filter((type) => type.includes("load:a"))).toEqual([]);
    expect(types).toContain("child.ended");
  });
});
