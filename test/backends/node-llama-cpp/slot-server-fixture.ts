/** A server of slots on an engine that is a double, for the tests of what happens in which step. */
import type { Token } from "node-llama-cpp";
import { SlotServer } from "../../../src/backends/node-llama-cpp/slot-server.js";
import type { QueueLimit, StepListener } from "../../../src/backends/backend.js";
import type { Job, Sequence } from "../../../src/backends/node-llama-cpp/slot-run.js";
import type { Priority } from "../../../src/inference.js";
import type { Gate } from "../../../src/testing/gate.js";
import { request } from "./engine-fixture.js";

const isToken = (id: number): id is Token => Number.isInteger(id);
export const tokens = (...ids: number[]): Token[] => ids.filter(isToken);
export const [BAD, LETTER] = [666, 65];

/** What happened in the engine, in order; one list for all sequences of a test. */
type Events = string[];

/**
 * A sequence that says "A" for ever, or what it is told to say after what it holds. In a step in which a sequence evaluates the token BAD, every sequence of the step
 * fails with one error, as in the engine, where a batch fails as a whole.
 */
export class FakeEngine {
  readonly events: Events = [];
  sequences = 0;
  cannotClear = new Set<number>();
  cannotMake = false;
  /** As of a model whose state cannot be cut. */
  needsCheckpoints = false;
  /** Holds every step until it is opened. */
  gate: Gate | undefined;
  /** The next step fails as a whole, whatever is in it. */
  failsOnce = false;
  /** What was asked of a sequence while it did something else: the real engine crashes. */
  readonly collisions: string[] = [];
  readonly #say: (held: readonly number[]) => number;
  #step: { ids: number[]; result: Promise<void> } | undefined;

  constructor(say: (held: readonly number[]) => number = () => LETTER) {
    this.#say = say;
  }

  readonly newSequence = (): Sequence => {
    if (this.cannotMake) throw new Error("no sequence left");
    const name = this.sequences++;
    let held: Token[] = [];
    let doing: string | undefined;
    const alone = async (what: string, work: () => Promise<void>) => {
      if (doing !== undefined) this.collisions.push(`${what} during ${doing} on ${name}`);
      doing = what;
      try {
        await work();
      } finally {
        doing = doing === "disposed" ? doing : undefined;
      }
    };
    const evaluateTogether = (ids: readonly Token[]) =>
      alone("evaluation", async () => {
        await this.evaluateTogether(ids);
        held = [...held, ...ids];
      });
    const say = () => this.#say(held);
    async function* evaluateWithMetadata(prompt: readonly Token[]): ReturnType<Sequence["evaluateWithMetadata"]> {
      let next = prompt;
      for (;;) {
        await evaluateTogether(next);
        const [letter] = tokens(say());
        if (letter === undefined) return;
        yield { token: letter };
        next = [letter];
      }
    }
    const eraseFrom = (start: number) =>
      alone("cut", async () => {
        if (this.cannotClear.has(name)) throw new Error("cannot clear");
        held = held.slice(0, start);
        this.events.push(start === 0 ? `${name} cleared` : `${name} cut to ${start}`);
      });
    return {
      evaluateWithMetadata,
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
      dispose: () =>
        alone("dispose", async () => {
          this.events.push(`${name} disposed`);
          doing = "disposed";
        }),
    };
  };

  async evaluateTogether(ids: readonly number[]): Promise<void> {
    if (this.#step === undefined) {
      const step: { ids: number[]; result: Promise<void> } = { ids: [], result: Promise.resolve() };
      step.result = new Promise((resolve) => setImmediate(resolve)).then(async () => {
        await this.gate?.enter();
        this.#step = undefined;
        this.events.push(`step of ${step.ids.length}`);
        const fails = this.failsOnce || step.ids.includes(BAD);
        this.failsOnce = false;
        if (fails) throw new Error("Eval has failed");
      });
      this.#step = step;
    }
    this.#step.ids.push(...ids);
    return this.#step.result;
  }
}

export interface ServeOptions {
  readonly slots?: number;
  readonly maxQueue?: number;
  readonly engine?: FakeEngine | undefined;
  /** Further contexts, of as many slots each, on engines of their own. */
  readonly others?: readonly FakeEngine[];
  readonly decodeWidths?: readonly number[];
  readonly steps?: StepListener;
  readonly queueLimit?: QueueLimit;
}

export function serve(options: ServeOptions = {}) {
  const engine = options.engine ?? new FakeEngine();
  const { slots = 2, decodeWidths = [] } = options;
  const broken: unknown[] = [];
  const server = new SlotServer({
    modelId: "test",
    incarnation: 1,
    maxQueue: options.maxQueue ?? 4,
    queueLimit: options.queueLimit,
    detokenizer: { detokenize: (ids) => String.fromCharCode(...ids) },
    groups: [engine, ...(options.others ?? [])].map(({ newSequence }) => ({
      slots,
      batchSize: 512,
      decodeWidths,
      newSequence,
    })),
    steps: options.steps,
    // steps that take no time: what is decided does not depend on the machine
    now: () => 0,
    onBroken: (cause) => broken.push(cause),
  });
  return { engine, server, broken };
}

export function job(
  options: {
    prompt?: Token[];
    scope?: string;
    maxTokens?: number;
    signal?: AbortSignal;
    onText?: (text: string) => void;
    priority?: Priority;
    isPaused?: () => boolean;
  } = {},
): Job {
  const signal = options.signal ?? new AbortController().signal;
  return {
    request: {
      ...request({ signal, ...(options.onText && { onText: options.onText }) }),
      priority: options.priority,
      get isPaused() {
        return options.isPaused?.() ?? false;
      },
    },
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
    structure: undefined,
  };
}
