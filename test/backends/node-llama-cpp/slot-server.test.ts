import { describe, expect, it } from "vitest";
import type { StepReport } from "../../../src/inference.js";
import { Gate } from "../../../src/testing/gate.js";
import { BAD, FakeEngine, job, serve, tokens } from "./slot-server-fixture.js";

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
      retryAfterMs: 2_000,
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

  it("spreads jobs over its contexts, which step by themselves", async () => {
    const other = new FakeEngine();
    const { engine, server } = serve({ slots: 2, others: [other] });

    await Promise.all([1, 2, 3, 4].map(() => server.submit(job())));

    for (const { events } of [engine, other])
      expect(events.filter((event) => event.startsWith("step"))).toEqual(["step of 6", "step of 2", "step of 2"]);
  });

  it("hands a slot of any context to the next in line", async () => {
    const other = new FakeEngine();
    const { server } = serve({ slots: 1, maxQueue: 9, others: [other] });

    const results = await Promise.all(Array.from({ length: 9 }, () => server.submit(job())));

    expect(results.map(({ text }) => text)).toEqual(Array.from({ length: 9 }, () => "AAA"));
    expect(server.queued).toBe(0);
  });

  it("breaks as a whole when one of its contexts does", async () => {
    const other = new FakeEngine();
    const { engine, server, broken } = serve({ slots: 1, others: [other] });
    await Promise.all([server.submit(job()), server.submit(job())]);
    engine.cannotClear.add(0);
    engine.cannotMake = true;

    const results = await Promise.allSettled([1, 2, 3].map(() => server.submit(job())));

    expect(results.filter(({ status }) => status === "rejected").length).toBeGreaterThanOrEqual(1);
    expect(broken).toEqual([new Error("no sequence left")]);
    await expect(server.submit(job())).rejects.toThrow("no sequence left");
  });

  it("advances no more slots in a step than the width says, and all of them in turn", async () => {
    const { engine, server } = serve({ slots: 4, decodeWidths: [0, 1, 2, 2, 2] });

    const results = await Promise.all([1, 2, 3, 4].map(() => server.submit(job({ maxTokens: 4 }))));

    expect(results.map(({ text }) => text)).toEqual(["AAAA", "AAAA", "AAAA", "AAAA"]);
    expect(engine.events.filter((event) => event.startsWith("step"))).toEqual([
      "step of 12",
      ...Array.from({ length: 6 }, () => "step of 2"),
    ]);
  });

  it("lets the more urgent go first", async () => {
    const { server } = serve({ slots: 1 });
    const done: string[] = [];
    const submit = (priority: "interactive" | "background") =>
      server.submit(job({ priority })).then(() => void done.push(priority));

    await Promise.all([submit("interactive"), submit("background"), submit("interactive")]);

    expect(done).toEqual(["interactive", "interactive", "background"]);
  });

  it("tells each step to who listens, and makes nothing for nobody", async () => {
    const told: StepReport[] = [];
    let isHeard = false;
    const steps = {
      get isHeard() {
        return isHeard;
      },
      tell: (step: StepReport) => void told.push(step),
    };
    const { server } = serve({ slots: 1, steps });

    await server.submit(job());
    expect(told).toEqual([]);
    isHeard = true;
    await Promise.all([server.submit(job({ prompt: tokens(7, 8), maxTokens: 2 })), server.submit(job())]);

    const common = { modelId: "test", incarnation: 1, activeSlots: 1, ms: 0 };
    expect(told.slice(0, 2)).toEqual([
      { ...common, queued: 1, batchTokens: 2, decodeTokens: 0, prefillTokens: 2 },
      { ...common, queued: 1, batchTokens: 1, decodeTokens: 1, prefillTokens: 0 },
    ]);
  });

  it("hears the abort of a job that pauses, while nothing else runs", async () => {
    const { engine, server } = serve({ slots: 1 });
    const controller = new AbortController();
    let isPaused = false;
    const running = server.submit(
      job({
        signal: controller.signal,
        maxTokens: 1000,
        isPaused: () => isPaused,
        onText: () => {
          isPaused = true;
          setImmediate(() => controller.abort("left"));
        },
      }),
    );

    await expect(running).rejects.toBe("left");
    expect(engine.events).toEqual(["step of 3"]);
  });

  it("leaves a job that pauses out of the others' steps, and lets it join them again", async () => {
    const { engine, server } = serve();
    let pieces = 0;
    let isPaused = false;
    const pausing = job({
      maxTokens: 4,
      isPaused: () => isPaused,
      onText: () => {
        if (++pieces === 3) isPaused = true;
      },
    });

    const [paused, other] = [server.submit(pausing), server.submit(job({ maxTokens: 5 }))];
    expect((await other).text).toBe("AAAAA");
    isPaused = false;
    pausing.request.onResume?.();

    expect((await paused).text).toBe("AAAA");
    expect(engine.events.filter((event) => event.startsWith("step"))).toEqual([
      "step of 6",
      "step of 2",
      "step of 2",
      "step of 1",
      "step of 1",
      "step of 1",
    ]);
  });

  it("does not try a request again that was aborted while its batch failed", async () => {
    const { engine, server } = serve();
    const gate = new Gate();
    engine.gate = gate;
    const controller = new AbortController();
    const gone = server.submit(job({ signal: controller.signal }));
    const bad = server.submit(job({ prompt: tokens(BAD) }));

    const outcomes = Promise.allSettled([gone, bad]);
    await gate.arrived();
    controller.abort("left");
    gate.open();

    expect(await outcomes).toMatchObject([{ reason: "left" }, { reason: new Error("Eval has failed") }]);
    expect(engine.events.filter((event) => event.startsWith("step"))).toEqual(["step of 4", "step of 1"]);
  });
});
