import { describe, expect, it } from "vitest";
import type { BackingRequest } from "../../../src/backends/backend.js";
import { Turns } from "../../../src/backends/node-llama-cpp/turns.js";

const full = () => new Error("full");
const never = new AbortController().signal;

describe("Turns", () => {
  it("lets one at a time, in the order of asking", async () => {
    const turns = new Turns();
    const order: string[] = [];
    const use = async (name: string) => {
      const end = await turns.take(never, full);
      order.push(`${name} begins`);
      await Promise.resolve();
      order.push(`${name} ends`);
      end();
    };

    await Promise.all(["a", "b", "c"].map(use));

    expect(order).toEqual(["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]);
  });

  it("lets as many at a time as there are places", async () => {
    const turns = new Turns({ places: 2 });
    const [first, second] = await Promise.all([turns.take(never, full), turns.take(never, full)]);
    const [third, fourth] = [turns.take(never, full), turns.take(never, full)];

    expect(turns.waiting).toBe(2);
    second();
    await third;
    expect(turns.waiting).toBe(1);
    first();
    await expect(fourth).resolves.toBeTypeOf("function");
  });

  it("turns away more waiters than allowed, and takes them again when there is room", async () => {
    const turns = new Turns({ maxQueue: 1 });
    const end = await turns.take(never, full);
    const second = turns.take(never, full);

    await expect(turns.take(never, full)).rejects.toThrow("full");
    end();
    (await second)();
    await expect(turns.take(never, full)).resolves.toBeTypeOf("function");
  });

  it("lets the most urgent of those who wait go first, and tells each its place", async () => {
    const turns = new Turns();
    const end = await turns.take(never, full);
    const order: string[] = [];
    const askers = (["background", "interactive"] as const).map(
      (priority): Pick<BackingRequest, "priority" | "queuePosition"> => ({ priority }),
    );
    const waiting = askers.map(async (asker) => {
      const endOwn = await turns.take(never, full, asker);
      order.push(asker.priority ?? "");
      endOwn();
    });

    expect(askers.map(({ queuePosition }) => queuePosition)).toEqual([1, 1]);
    end();
    await Promise.all(waiting);
    expect(order).toEqual(["interactive", "background"]);
  });

  it("rejects a waiter with the signal's reason as soon as it aborts, and keeps its place free", async () => {
    const turns = new Turns({ maxQueue: 1 });
    const end = await turns.take(never, full);
    const controller = new AbortController();
    const second = turns.take(controller.signal, full);
    const reason = new Error("no longer wanted");
    controller.abort(reason);

    await expect(second).rejects.toBe(reason);
    expect(turns.waiting).toBe(0);
    const third = turns.take(never, full);
    end();
    await expect(third).resolves.toBeTypeOf("function");
  });
});
