import { describe, expect, it } from "vitest";
import { TotalQueue } from "../../../../src/manager/queue-limit.js";
import { SlotQueue, type Admission } from "../../../../src/backends/node-llama-cpp/scheduler/slot-queue.js";
import type { Standing } from "../../../../src/backends/node-llama-cpp/scheduler/waiting-order.js";

const slot = (index: number): Admission => ({ type: "slot", slot: index });
const queued = (position: number): Admission => ({ type: "queued", position });

describe("SlotQueue", () => {
  it("gives free slots first, then queues in order, then turns away", () => {
    const queue = new SlotQueue<string>({ slots: 2, maxQueue: 2 });

    expect(["a", "b", "c", "d", "e"].map((job) => queue.admit(job, 0))).toEqual([
      slot(0),
      slot(1),
      queued(1),
      queued(2),
      { type: "full", of: "model", limit: 2, queued: 2 },
    ]);
    expect(queue.waiting).toBe(2);
  });

  it("hands a slot that is released to the job that waited longest", () => {
    const queue = new SlotQueue<string>({ slots: 1, maxQueue: 2 });
    for (const job of ["a", "b", "c"]) queue.admit(job, 0);

    expect([queue.release([0], 1), queue.release([0], 2), queue.release([0], 3)]).toEqual([
      [{ slot: 0, job: "b" }],
      [{ slot: 0, job: "c" }],
      [],
    ]);
    expect(queue.admit("d", 4)).toEqual(slot(0));
  });

  it("lets each job have the slot that is picked for it, also when several become free at once", () => {
    const queue = new SlotQueue<number>({
      slots: 3,
      maxQueue: 4,
      pick: (job, free) => free.find((each) => each === job) ?? free[0],
    });

    expect([2, 0, 1, 2, 1].map((job) => queue.admit(job, 0))).toEqual([
      slot(2),
      slot(0),
      slot(1),
      queued(1),
      queued(2),
    ]);
    expect(queue.release([1, 0, 2], 1)).toEqual([
      { slot: 2, job: 2 },
      { slot: 1, job: 1 },
    ]);
    expect(queue.admit(9, 2)).toEqual(slot(0));
  });

  it("does not count a job that gets a slot against a queue of length 0", () => {
    const queue = new SlotQueue<string>({ slots: 1, maxQueue: 0 });

    expect(queue.admit("a", 0)).toEqual(slot(0));
    expect(queue.admit("b", 0)).toMatchObject({ type: "full" });
  });

  it("lets a waiting job leave, once, and makes its place free", () => {
    const queue = new SlotQueue<string>({ slots: 1, maxQueue: 1 });
    queue.admit("a", 0);
    queue.admit("b", 0);

    expect([queue.withdraw("b"), queue.withdraw("b"), queue.withdraw("a")]).toEqual([true, false, false]);
    expect(queue.admit("c", 0)).toEqual(queued(1));
  });

  it("gives up all that wait when it is drained", () => {
    const queue = new SlotQueue<string>({ slots: 1, maxQueue: 4 });
    for (const job of ["a", "b", "c"]) queue.admit(job, 0);

    expect(queue.drain()).toEqual(["b", "c"]);
    expect(queue.waiting).toBe(0);
  });

  it("lets the more urgent go first, and tells each its place", () => {
    const priorities: Record<string, Standing["priority"]> = { late: "background", soon: "system", now: "interactive" };
    const queue = new SlotQueue<string>({
      slots: 1,
      maxQueue: 9,
      standing: (job) => ({ scope: "", priority: priorities[job] ?? "interactive" }),
    });
    queue.admit("first", 0);

    expect(["late", "soon", "now"].map((job) => queue.admit(job, 0))).toEqual([queued(1), queued(1), queued(1)]);
    expect([1, 2, 3].flatMap((at) => queue.release([0], at).map(({ job }) => job))).toEqual(["now", "soon", "late"]);
  });

  it("does not let a caller wait for the turns of its requests that have left the queue", () => {
    const queue = new SlotQueue<string>({
      slots: 1,
      maxQueue: 99,
      standing: (job) => ({ scope: job[0] ?? "", priority: "interactive" }),
    });
    queue.admit("first", 0);
    // as an editor does, which asks anew at each key
    for (let key = 0; key < 50; key++) {
      queue.admit("a gone", 0);
      queue.withdraw("a gone");
    }
    for (const job of ["a gone", "a1", "b1", "b2", "a2"]) queue.admit(job, 0);
    queue.withdraw("a gone");

    const order = Array.from({ length: 4 }, (_, at) => queue.release([0], at).map(({ job }) => job)).flat();
    expect(order).toEqual(["a1", "b1", "b2", "a2"]);
  });

  it("moves no request before those of others that came when it did", () => {
    const queue = new SlotQueue<string>({
      slots: 1,
      maxQueue: 99,
      standing: (job) => ({ scope: job[0] ?? "", priority: job.endsWith("later") ? "background" : "interactive" }),
    });
    for (const job of ["first", "a later", "b1", "b2", "b3"]) queue.admit(job, 0);
    const before = [1, 2].flatMap((at) => queue.release([0], at).map(({ job }) => job));
    for (const job of ["c1", "a1"]) queue.admit(job, 2);
    queue.withdraw("a later");

    expect(before).toEqual(["b1", "b2"]);
    expect([3, 4, 5].flatMap((at) => queue.release([0], at).map(({ job }) => job))).toEqual(["b3", "c1", "a1"]);
  });

  it("lets callers take turns, however much one of them asks for", () => {
    const queue = new SlotQueue<string>({
      slots: 1,
      maxQueue: 99,
      standing: (job) => ({ scope: job[0] ?? "", priority: "interactive" }),
    });
    for (const job of ["a0", "a1", "a2", "a3", "b1", "b2", "c1"]) queue.admit(job, 0);

    const order = Array.from({ length: 6 }, (_, at) => queue.release([0], at).map(({ job }) => job)).flat();
    expect(order).toEqual(["a1", "b1", "c1", "a2", "b2", "a3"]);
  });

  it("does not count against a caller what has left before its turn", () => {
    const queue = new SlotQueue<string>({
      slots: 1,
      maxQueue: 99,
      standing: (job) => ({ scope: job[0] ?? "", priority: "interactive" }),
    });
    for (const job of ["a0", "a1", "a2", "a3", "a4"]) queue.admit(job, 0);
    for (const job of ["a2", "a3", "a4"]) queue.withdraw(job);
    for (const job of ["b1", "a5", "b2", "b3"]) queue.admit(job, 0);

    const order = Array.from({ length: 5 }, (_, at) => queue.release([0], at).map(({ job }) => job)).flat();
    expect(order).toEqual(["a1", "b1", "a5", "b2", "b3"]);
  });

  it("shares a limit with other queues, and counts only what waits now", () => {
    const shared = new TotalQueue(2);
    const [one, other] = [0, 1].map(() => new SlotQueue<string>({ slots: 1, maxQueue: 9, shared }));
    if (one === undefined || other === undefined) throw new TypeError("two queues");
    for (const queue of [one, other]) queue.admit("runs", 0);

    expect(one.admit("a", 0)).toEqual(queued(1));
    expect(other.admit("b", 0)).toEqual(queued(1));
    expect(other.admit("c", 0)).toEqual({ type: "full", of: "all", limit: 2, queued: 2 });
    one.release([0], 1);
    expect(other.admit("c", 1)).toEqual(queued(2));
    other.withdraw("b");
    other.drain();
    expect(shared.waiting).toBe(0);
  });

  it("estimates the wait by how long slots are held", () => {
    const queue = new SlotQueue<string>({ slots: 2, maxQueue: 9 });
    expect(queue.expectedWaitMs(0)).toBe(500); // a guess: a second, over two slots
    for (const job of ["a", "b", "c", "d"]) queue.admit(job, 0);
    queue.release([0], 4_000);

    expect(queue.expectedWaitMs(4_000)).toBe(4_000); // the second in line, two slots of 4 s each
  });
});
