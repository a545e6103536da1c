import { describe, expect, it } from "vitest";
import type { SlotServer } from "../../../src/backends/node-llama-cpp/slot-server.js";
import type { Job } from "../../../src/backends/node-llama-cpp/slot-run.js";
import { Gate } from "../../../src/testing/gate.js";
import { BAD, FakeEngine, job, LETTER, serve, tokens } from "./slot-server-fixture.js";

describe("prefix reuse", () => {
  const steps = ({ events }: FakeEngine) => events.filter((event) => event.startsWith("step"));
  const cached = async (server: SlotServer, ...jobs: Job[]) => {
    const counts = [];
    for (const each of jobs) counts.push((await server.submit(each)).usage.cachedTokens);
    return counts;
  };

  it("evaluates only what the slot does not hold, and counts the whole prompt", async () => {
    const { engine, server } = serve();
    await server.submit(job({ prompt: tokens(1, 2, 3), maxTokens: 2 }));

    // The second "A" has been sampled, but not been evaluated: it is not in the cache.
    const { usage } = await server.submit(job({ prompt: tokens(1, 2, 3, LETTER, LETTER, 4), maxTokens: 1 }));

    expect(usage).toEqual({ promptTokens: 6, completionTokens: 1, cachedTokens: 4 });
    expect(engine.events).toEqual(["step of 3", "step of 1", "step of 2"]);
  });

  it("evaluates the last token of a prompt that it knows to the end", async () => {
    const { engine, server } = serve({ slots: 1 });

    expect(await cached(server, job(), job())).toEqual([0, 2]);
    expect(engine.events).toContain("0 cut to 2");
    expect(steps(engine).filter((step) => step === "step of 3")).toHaveLength(1);
  });

  it("punishes the same tokens as a cold run", async () => {
    const { server } = serve({ slots: 1 });
    const [cold, warm] = [job(), job()].map((each) => ({ ...each, punishable: [...each.tokens] }));
    if (cold === undefined || warm === undefined) throw new Error("two jobs");

    expect(await cached(server, cold, warm)).toEqual([0, 2]);
    expect(warm.punishable).toEqual(tokens(1, 2, 3, LETTER, LETTER, LETTER));
    expect(warm.punishable).toEqual(cold.punishable);
  });

  it("shares nothing between scopes", async () => {
    const { server } = serve({ slots: 1 });

    expect(await cached(server, job({ scope: "a" }), job({ scope: "b" }), job({ scope: "b" }))).toEqual([0, 0, 2]);
  });

  it("keeps a state that cannot be cut whole, or not at all", async () => {
    const engine = new FakeEngine();
    engine.needsCheckpoints = true;
    const { server } = serve({ slots: 1, engine });
    const longer = job({ prompt: tokens(1, 2, 3, 4), maxTokens: 1 });

    expect(await cached(server, job({ maxTokens: 1 }), longer, longer)).toEqual([0, 3, 0]);
    expect(engine.events.filter((event) => event.includes("cut"))).toEqual([]);
  });

  it("goes on from what was evaluated before an abort", async () => {
    const { engine, server } = serve({ slots: 1 });
    const gate = new Gate();
    engine.gate = gate;
    const controller = new AbortController();
    const prompt = tokens(...Array.from({ length: 300 }, (_, index) => index + 1));
    const aborted = server.submit(job({ prompt, signal: controller.signal }));
    await gate.arrived();
    controller.abort("left");
    gate.open();
    await expect(aborted).rejects.toBe("left");

    const { usage } = await server.submit(job({ prompt }));

    expect(steps(engine)[0]).toBe("step of 128");
    expect(usage.cachedTokens).toBe(128);
  });

  it("never trusts a sequence after the engine has failed on it, also if the request went on", async () => {
    const { engine, server } = serve({ slots: 2 });

    const [good] = await Promise.allSettled([server.submit(job()), server.submit(job({ prompt: tokens(BAD) }))]);

    expect(good.status).toBe("fulfilled");
    expect(engine.events.filter((event) => event.endsWith("disposed")).toSorted()).toEqual([
      "0 disposed",
      "1 disposed",
    ]);
    expect(await cached(server, job(), job())).toEqual([0, 2]);
  });

  it("gives slots that become free together to those that wait as suits them best", async () => {
    const { server } = serve({ slots: 2 });
    const [ones, twos] = [tokens(1, 1, 1, 1), tokens(2, 2, 2, 2)];

    const results = await Promise.all([ones, twos, twos, ones].map((prompt) => server.submit(job({ prompt }))));

    expect(results.map(({ usage }) => usage.cachedTokens)).toEqual([0, 0, 3, 3]);
  });
});
