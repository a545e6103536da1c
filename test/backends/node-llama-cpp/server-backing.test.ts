import type { Token } from "node-llama-cpp";
import { describe, expect, it } from "vitest";
import { SlotServer } from "../../../src/backends/node-llama-cpp/server-backing.js";
import type { Job, Sequence } from "../../../src/backends/node-llama-cpp/slot-run.js";
import { Gate } from "../../../src/testing/gate.js";
import { request } from "./engine-fixture.js";

const isToken = (id: number): id is Token => Number.isInteger(id);
const tokens = (...ids: number[]): Token[] => ids.filter(isToken);
const [BAD, LETTER] = [666, 65];

/** What happened in the engine, in order; one list for all sequences of a test. */
type Events = string[];

/**
 * A sequence that says "A" for ever. In a step in which a sequence evaluates the token BAD, every sequence of the step
 * fails with one error, as in the engine, where a batch fails as a whole.
 */
class FakeEngine {
  readonly events: Events = [];
  sequences = 0;
  cannotClear = new Set<number>();
  cannotMake = false;
  /** As of a model whose state cannot be cut. */
  needsCheckpoints = false;
  /** Holds every step until it is opened. */
  gate: Gate | undefined;
  #step: { ids: number[]; result: Promise<void> } | undefined;

  readonly newSequence = (): Sequence => {
    if (this.cannotMake) throw new Error("no sequence left");
    const name = this.sequences++;
    let held: Token[] = [];
    const evaluateTogether = async (ids: readonly Token[]) => {
      await this.evaluateTogether(ids);
      held = [...held, ...ids];
    };
    async function* evaluate(prompt: readonly Token[]): AsyncGenerator<Token, void, void | Token | Token[]> {
      let next = prompt;
      for (;;) {
        await evaluateTogether(next);
        const [letter] = tokens(LETTER);
        if (letter === undefined) return;
        yield letter;
        next = [letter];
      }
    }
    const eraseFrom = async (start: number) => {
      if (this.cannotClear.has(name)) throw new Error("cannot clear");
      held = held.slice(0, start);
      this.events.push(start === 0 ? `${name} cleared` : `${name} cut to ${start}`);
    };
    return {
      evaluate,
      evaluateWithoutGeneratingNewTokens: evaluateTogether,
      get contextTokens() {
        return held;
      },
      get nextTokenIndex() {
        return held.length;
      },
      needsCheckpoints: this.needsCheckpoints,
      eraseContextTokenRanges: async ([range]) => eraseFrom(range?.start ?? Number.NaN),
      clearHistory: () => eraseFrom(0),
      dispose: async () => {
        this.events.push(`${name} disposed`);
      },
    };
  };

  async evaluateTogether(ids: readonly number[]): Promise<void> {
    if (this.#step === undefined) {
      const step: { ids: number[]; result: Promise<void> } = { ids: [], result: Promise.resolve() };
      step.result = new Promise((resolve) => setImmediate(resolve)).then(async () => {
        await this.gate?.enter();
        this.#step = undefined;
        this.events.push(`step of ${step.ids.length}`);
        if (step.ids.includes(BAD)) throw new Error("Eval has failed");
      });
      this.#step = step;
    }
    this.#step.ids.push(...ids);
    return this.#step.result;
  }
}

function serve(options: { slots?: number; maxQueue?: number; engine?: FakeEngine } = {}) {
  const engine = options.engine ?? new FakeEngine();
  const broken: unknown[] = [];
  const server = new SlotServer({
    modelId: "test",
    slots: options.slots ?? 2,
    maxQueue: options.maxQueue ?? 4,
    batchSize: 512,
    detokenizer: { detokenize: (ids) => String.fromCharCode(...ids) },
    newSequence: engine.newSequence,
    onBroken: (cause) => broken.push(cause),
  });
  return { engine, server, broken };
}

function job(
  options: {
    prompt?: Token[];
    scope?: string;
    maxTokens?: number;
    signal?: AbortSignal;
    onText?: (text: string) => void;
  } = {},
): Job {
  const signal = options.signal ?? new AbortController().signal;
  return {
    request: request({ signal, ...(options.onText && { onText: options.onText }) }),
    signal,
    submittedAt: 0,
    tokens: options.prompt ?? tokens(1, 2, 3),
    scope: options.scope ?? "",
    textBefore: [],
    maxTokens: options.maxTokens ?? 3,
    stopTokens: new Set(),
    stopTexts: [],
    sampling: {},
    punishable: [],
  };
}

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
