import { describe, expect, it } from "vitest";
import { Gate } from "../../../src/testing/gate.js";
import { BAD, job, serve, tokens } from "./slot-server-fixture.js";

describe("SlotServer", () => {
  it("advances all slots together, one native batch a step", async () => {
    const { engine, server } = serve();

    const results = await Promise.all([server.submit(job()), server.submit(job())]);

    expect(results.map(({ text }) => text)).toEqual(["AAA", "AAA"]);
    expect(engine.events.filter((event) => event.startsWith("step"))).toEqual(["step of 6", "step of 2", "step of 2"]);
  });

  it("evaluates a long prompt in slices, beside those that decode", async () => {
    const { engine, server } = serve();

    await Promise.all([
      server.submit(job({ maxTokens: 3 })),
      server.submit(job({ prompt: tokens(...Array<number>(300).fill(1)), maxTokens: 1 })),
    ]);

    expect(engine.events.filter((event) => event.startsWith("step"))).toEqual([
      "step of 128",
      "step of 129",
      "step of 48",
    ]);
  });

  it("settles a job when its slot is quiet, and clears the slot for a next one that begins otherwise", async () => {
    const { engine, server } = serve({ slots: 1 });
    const note = (name: string) => () => void engine.events.push(name);

    await Promise.all([
      server.submit(job({ maxTokens: 1 })).then(note("first done")),
      server.submit(job({ maxTokens: 1, prompt: tokens(4) })).then(note("second done")),
    ]);

    expect(engine.events).toEqual(["step of 3", "0 cleared", "first done", "step of 1", "second done"]);
  });

  it("fails only the request that is to blame when a batch fails", async () => {
    const { server, broken } = serve({ slots: 3 });

    const results = await Promise.allSettled([
      server.submit(job()),
      server.submit(job({ prompt: tokens(BAD) })),
      server.submit(job()),
    ]);

    expect(
      results.map((result) => (result.status === "fulfilled" ? result.value.text : String(result.reason))),
    ).toEqual(["AAA", "Error: Eval has failed", "AAA"]);
    expect(broken).toEqual([]);
    await expect(server.submit(job())).resolves.toMatchObject({ text: "AAA" });
  });

  it("fails only the request whose listener throws", async () => {
    const { server } = serve();
    const angry = () => {
      throw new Error("listener");
    };

    const results = await Promise.allSettled([server.submit(job({ onText: angry })), server.submit(job())]);

    expect(results).toMatchObject([{ status: "rejected", reason: new Error("listener") }, { status: "fulfilled" }]);
  });

  it("replaces a sequence that cannot be cleared", async () => {
    const { engine, server, broken } = serve({ slots: 1 });
    engine.cannotClear.add(0);

    await server.submit(job());

    await expect(server.submit(job())).resolves.toMatchObject({ text: "AAA", usage: { cachedTokens: 0 } });
    expect(engine.events).toContain("0 disposed");
    await expect(server.submit(job())).resolves.toMatchObject({ text: "AAA", usage: { cachedTokens: 2 } });
    expect(engine.events).toContain("1 cut to 2");
    expect(broken).toEqual([]);
  });

  it("breaks, and rejects all that it has, when it can get no clean sequence", async () => {
    const { engine, server, broken } = serve({ slots: 1 });
    await server.submit(job());
    engine.cannotClear.add(0);
    engine.cannotMake = true;

    const results = await Promise.allSettled([server.submit(job()), server.submit(job())]);

    expect(results.map(({ status }) => status)).toEqual(["rejected", "rejected"]);
    expect(broken).toEqual([new Error("no sequence left")]);
    await expect(server.submit(job())).rejects.toThrow("no sequence left");
  });

  it("lets a queued job leave at once, and a running one after the step, each with the signal's reason", async () => {
    const { engine, server } = serve({ slots: 1 });
    const gate = new Gate();
    engine.gate = gate;
    const [running, waiting] = [new AbortController(), new AbortController()];
    const first = server.submit(job({ signal: running.signal, maxTokens: 1000 }));
    const second = server.submit(job({ signal: waiting.signal }));

    waiting.abort("second left");
    await expect(second).rejects.toBe("second left");
    expect(engine.events).toEqual([]);
    running.abort("first left");
    gate.open();

    await expect(first).rejects.toBe("first left");
    expect(engine.events).toEqual(["step of 3"]);
  });

  it("turns away what does not fit into the queue, with the numbers", async () => {
    const { server } = serve({ slots: 1, maxQueue: 1 });
    const accepted = [server.submit(job()), server.submit(job())];

    await expect(server.submit(job())).rejects.toMatchObject({
      code: "queue_full",
      modelId: "test",
      limit: 1,
      queued: 1,
    });
    await Promise.all(accepted);
    await expect(server.submit(job())).resolves.toBeDefined();
  });

  it("takes a job that comes at any moment of a turn", async () => {
    const { server } = serve({ slots: 2 });
    let done = 0;
    const again = async (depth: number): Promise<void> => {
      await server.submit(job({ maxTokens: 1 + (depth % 3) }));
      done++;
      for (let turn = 0; turn < depth % 5; turn++) await Promise.resolve();
      if (depth > 0) await again(depth - 1);
    };

    await Promise.all([again(40), again(41), again(42)]);

    expect(done).toBe(126);
  });
});
