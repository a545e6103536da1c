import { describe, expect, it } from "vitest";
import { TextPool } from "../../../src/backends/node-llama-cpp/text-pool.js";
import { settle } from "../../support/test-supervisor.js";
import { never, request } from "./engine-fixture.js";

/** Evaluations that end when they are told to; `events` says what happened where. */
function poolOf(contexts: number, maxQueue = 4) {
  const names = Array.from({ length: contexts }, (_, index) => `context ${index}`);
  const pool = new TextPool(names, { modelId: "test", maxQueue });
  const running = new Map<string, { end: () => void; fail: (error: unknown) => void }>();
  const used: string[] = [];
  const evaluate = (context: string, text: string) =>
    new Promise<string>((resolve, reject) => {
      expect(used, "a context does one thing at a time").not.toContain(context);
      used.push(context);
      const over = (settleIt: () => void) => () => {
        used.splice(used.indexOf(context), 1);
        running.delete(text);
        settleIt();
      };
      running.set(text, {
        end: over(() => resolve(text.toUpperCase())),
        fail: (error) => over(() => reject(error))(),
      });
    });
  const run = (texts: readonly string[], signal: AbortSignal = never) =>
    pool.run(request(), signal, () => texts, evaluate).then(({ results }) => results);
  const end = async (text: string) => {
    running.get(text)?.end();
    await settle();
  };
  return { pool, run, end, running, evaluated: () => [...running.keys()] };
}

describe("TextPool", () => {
  it("evaluates as many texts at once as it has contexts, and gives the results in the texts' order", async () => {
    const { run, end, evaluated } = poolOf(2);
    const call = run(["a", "b", "c", "d"]);
    await settle();

    expect(evaluated()).toEqual(["a", "b"]);
    await end("b");
    expect(evaluated()).toEqual(["a", "c"]);
    await end("c");
    await end("d");
    await end("a");

    expect(await call).toEqual(["A", "B", "C", "D"]);
  });

  it("lets a short call in between the texts of a long one", async () => {
    const { run, end, evaluated } = poolOf(2);
    const long = run(["a", "b", "c", "d"]);
    const short = run(["x"]);
    await settle();

    await end("a");
    expect(evaluated()).toEqual(["b", "x"]);
    await end("x");
    expect(await short).toEqual(["X"]);
    for (const text of ["b", "c", "d"]) await end(text);
    expect(await long).toEqual(["A", "B", "C", "D"]);
  });

  it("rejects with the first failure, once nothing of the call runs any more, and starts none of its other texts", async () => {
    const { run, end, running, evaluated } = poolOf(2);
    const settled: unknown[] = [];
    const call = run(["a", "b", "c"]).catch((error: unknown) => settled.push(error));
    await settle();
    running.get("a")?.fail("broken");
    await settle();

    expect(evaluated()).toEqual(["b"]);
    expect(settled).toEqual([]);
    await end("b");
    await call;
    expect(settled).toEqual(["broken"]);
    expect(evaluated()).toEqual([]);
    const next = run(["d", "e"]);
    await settle();
    await end("d");
    await end("e");
    expect(await next).toEqual(["D", "E"]);
  });

  it("stops between texts when the signal aborts, with its reason", async () => {
    const { run, end, evaluated } = poolOf(1);
    const controller = new AbortController();
    const stopped = Promise.allSettled([run(["a", "b"], controller.signal)]);
    const other = run(["x"]);
    await settle();
    controller.abort("enough");
    await settle();

    expect(evaluated()).toEqual(["a"]);
    await end("a");
    expect(await stopped).toEqual([{ status: "rejected", reason: "enough" }]);
    expect(evaluated()).toEqual(["x"]);
    await end("x");
    expect(await other).toEqual(["X"]);
  });

  it("refuses a call beyond one for each context and maxQueue more, before anything is done for it", async () => {
    const { pool, run, end } = poolOf(2, 1);
    const calls = ["a", "b", "c"].map((text) => run([text]));
    const prepare = () => expect.unreachable("a refused call costs nothing");
    await settle();

    expect(pool.queued).toBe(1);
    await expect(pool.run(request(), never, prepare, async () => undefined)).rejects.toMatchObject({
      code: "queue_full",
      modelId: "test",
      limit: 1,
      queued: 1,
    });
    for (const text of ["a", "b", "c"]) await end(text);
    expect((await Promise.all(calls)).flat()).toEqual(["A", "B", "C"]);
    expect(pool.queued).toBe(0);
    await expect(run([])).resolves.toEqual([]);
  });

  it("counts a call out that fails before its first text", async () => {
    const { pool, run, end } = poolOf(1, 0);
    const bad = () => {
      throw new RangeError("bad text");
    };

    for (let round = 0; round < 3; round++)
      await expect(pool.run(request(), never, bad, async () => undefined)).rejects.toThrow("bad text");

    const call = run(["a"]);
    await settle();
    await end("a");
    expect(await call).toEqual(["A"]);
  });

  it("tells the phases of a call", async () => {
    const { pool, run, end } = poolOf(1);
    const first = run(["a"]);
    const call = request();
    const second = pool.run(
      call,
      never,
      () => ["b"],
      async () => call.phase,
    );
    await settle();

    expect(call.phase).toBe("queue");
    await end("a");
    await first;
    expect((await second).results).toEqual(["prefill"]);
  });
});
