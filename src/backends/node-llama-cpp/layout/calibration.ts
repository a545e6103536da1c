/** Measures how fast a loaded model decodes in each layout. Takes two seconds or so, more where single steps are slow. */
import type { LlamaContext, LlamaContextSequence, LlamaModel, Token } from "node-llama-cpp";
import { allSettled } from "../all-settled.js";
import { createGenerationContext, newSequence } from "../contexts.js";
import { engineIsBusy } from "../engine-activity.js";
import type { StepTime } from "../scheduler/decode-width.js";
import {
  candidateSpreads,
  candidateWidths,
  chooseSpread,
  measuringMs,
  slotsOf,
  withRates,
  type Calibration,
  type Spread,
  type SpreadInput,
  type SpreadRates,
} from "./layout.js";

/** Enough for a step, and small: what is measured is the engine, not the attention over a long text. */
const CONTEXT_TOKENS = 256;
/** A candidate is measured for about so long, or in two runs of so many steps. */
const CANDIDATE = { ms: 150, steps: 60 };
/** No spreads are tried that may end after this time, and no widths after that one: a load is waiting. */
const SPREADS_MS = 8_000;
const WIDTHS_MS = 2_500;
/** Each spread is measured so often, in turn, and the best counts: what disturbs the machine only ever adds time. */
const PASSES = 2;
/** A spread whose first step is so many times slower than the best one's is not looked at any longer. */
const HOPELESS = 2;
/** Fewer than two say nothing about which is better. */
const LEAST_WIDTHS = 2;

export interface CalibrationInput extends SpreadInput {
  readonly model: LlamaModel;
  readonly batchSize: number;
  /** Set by the caller: then only the spread is measured. */
  readonly decodeWidth: number | undefined;
  readonly signal: AbortSignal;
}

interface Running extends CalibrationInput {
  /** Called before each step; throws where it is to be the last. */
  readonly check: () => void;
}

/** Nothing can be said: the engine has something else to do, so that figures would be wrong, or it failed on a step. */
export class NotMeasurable extends Error {}

/** @throws NotMeasurable, the signal's reason, or the engine's error if it cannot make a context. */
export async function calibrate(given: CalibrationInput): Promise<Calibration> {
  const endsAt = performance.now() + SPREADS_MS;
  let isOver = false;
  const check = () => {
    given.signal.throwIfAborted();
    // for good: no context begins a step on its own after another one has given up
    isOver ||= engineIsBusy();
    if (isOver) throw new NotMeasurable("the engine was busy");
  };
  const input = { ...given, check };
  const [first, ...others] = candidateSpreads(input);
  const found = await ratesOf(first, input, 0);
  if (found === undefined) throw new NotMeasurable("the first spread was not measured");
  let rates: [SpreadRates, ...SpreadRates[]] = [found];
  let left: readonly Spread[] = others;
  for (let pass = 0; pass < PASSES; pass++) {
    for (const spread of left) {
      // what is so slow that it would use up the time is not the best one either
      if (measuringMs(spread, found, input.slots) > endsAt - performance.now()) continue;
      const other = await ratesOf(spread, input, Math.max(...rates.map(({ full }) => full)));
      if (other !== undefined) rates = withRates(rates, other);
    }
    // hopeless ones are not looked at again, and without others there is nothing to compare
    left = rates.length > 1 ? rates.map(({ spread }) => spread) : [];
  }
  const { spread } = chooseSpread(rates);
  const steps = input.decodeWidth === undefined ? await stepsOf(spread, input) : [];
  return {
    spread,
    steps,
    measurements: rates.map(({ spread: { contexts, threads }, single, full }) => ({
      contexts,
      threadsPerContext: threads,
      singleTokensPerSecond: Math.round(single),
      fullTokensPerSecond: Math.round(full),
    })),
  };
}

/** `best`: tokens per second of all slots in the best spread so far. Undefined for one that is hopeless beside it. */
function ratesOf(spread: Spread, input: Running, best: number): Promise<SpreadRates | undefined> {
  const rate = (slots: number, ms: number) => (1_000 * slots) / ms;
  return withLanes(spread, input, async (contexts) => {
    const firstMs = await run(contexts, Infinity, 1);
    if (rate(input.slots, firstMs) < best / HOPELESS) return undefined;
    const fullMs = await stepMs(contexts, Infinity);
    const singleMs = await stepMs(contexts.slice(0, 1), 1);
    return { spread, single: rate(1, singleMs), full: rate(input.slots, fullMs) };
  });
}

/** In two rounds, so that what disturbs the machine for a moment disturbs no width in both. */
function stepsOf(spread: Spread, input: Running): Promise<StepTime[]> {
  const [slots = input.slots] = slotsOf(input.slots, spread.contexts);
  const widths = candidateWidths(slots);
  if (widths.length === 1) return Promise.resolve([]);
  return withLanes(spread, input, async (contexts) => {
    const endsAt = performance.now() + WIDTHS_MS;
    const times = new Map<number, number>();
    for (let round = 0; round < 2; round++) {
      for (const width of widths) {
        if (performance.now() > endsAt && times.size >= LEAST_WIDTHS) break;
        times.set(width, Math.min(times.get(width) ?? Infinity, await stepMs(contexts, width)));
      }
    }
    return [...times].map(([width, ms]) => ({ width, ms }));
  });
}

/**
 * Milliseconds of a step in which `width` lanes of every context advance. Each context goes on by itself, as it does in
 * service; the better of two runs, since what disturbs only ever adds time.
 */
async function stepMs(contexts: readonly Lanes[], width: number): Promise<number> {
  const firstMs = await run(contexts, width, 1);
  const steps = Math.min(CANDIDATE.steps, Math.round(CANDIDATE.ms / firstMs / 2));
  if (steps <= 1) return Math.min(firstMs, await run(contexts, width, 1));
  return Math.min(await run(contexts, width, steps), await run(contexts, width, steps));
}

/** Milliseconds of each of so many steps. */
async function run(contexts: readonly Lanes[], width: number, steps: number): Promise<number> {
  const startedAt = performance.now();
  await allSettled(
    contexts.map(async (lanes) => {
      for (let step = 0; step < steps; step++) await lanes.step(width);
    }),
  );
  return (performance.now() - startedAt) / steps;
}

/** Makes the contexts of a spread, warmed up, and gives them back, whatever happens. */
async function withLanes<Result>(
  { contexts, threads }: Spread,
  { model, slots, batchSize, check }: Running,
  work: (contexts: readonly Lanes[]) => Promise<Result>,
): Promise<Result> {
  const made: Lanes[] = [];
  try {
    for (const sequences of slotsOf(slots, contexts)) {
      const plan = { kind: "slots", contextSize: CONTEXT_TOKENS, sequences, batchSize, threads } as const;
      const lanes = new Lanes(await createGenerationContext(model, plan), check);
      made.push(lanes);
      lanes.open(sequences);
    }
    await allSettled(made.map((lanes) => lanes.step(Infinity)));
    return await work(made);
  } finally {
    await allSettled(made.map((lanes) => lanes.dispose()));
  }
}

interface Lane {
  readonly sequence: LlamaContextSequence;
  iterator: AsyncGenerator<Token, void, void | Token | Token[]>;
}

/** The sequences of one context, each with a text that goes on for ever. */
class Lanes {
  readonly #context: LlamaContext;
  readonly #check: () => void;
  #start: readonly Token[] = [];
  #lanes: readonly Lane[] = [];
  #next = 0;

  constructor(context: LlamaContext, check: () => void) {
    this.#context = context;
    this.#check = check;
  }

  /** Apart from the constructor, so that a context in which this fails has an owner already. */
  open(count: number): void {
    const { model } = this.#context;
    const text = model.tokenize("a b c d");
    const { bos } = model.tokens;
    this.#start = text.length > 0 || bos === null ? text : [bos];
    this.#lanes = Array.from({ length: count }, () => {
      const sequence = newSequence(this.#context);
      return { sequence, iterator: this.#begin(sequence) };
    });
  }

  #begin(sequence: LlamaContextSequence) {
    return sequence.evaluate([...this.#start], { temperature: 0 });
  }

  /** Advances the next `width` of them. */
  async step(width: number): Promise<void> {
    this.#check();
    const from = this.#next;
    const turn = [...this.#lanes.slice(from), ...this.#lanes.slice(0, from)].slice(0, width);
    this.#next = (from + turn.length) % this.#lanes.length;
    try {
      await allSettled(turn.map((lane) => this.#advance(lane)));
    } catch (cause) {
      throw new NotMeasurable("a step failed", { cause });
    }
  }

  /** At the end of the text, or of the context, it begins again. */
  async #advance(lane: Lane): Promise<void> {
    if (lane.sequence.nextTokenIndex < CONTEXT_TOKENS - 1 && !(await lane.iterator.next()).done) return;
    await lane.iterator.return();
    await lane.sequence.clearHistory();
    lane.iterator = this.#begin(lane.sequence);
  }

  async dispose(): Promise<void> {
    await Promise.allSettled(this.#lanes.map(({ iterator }) => iterator.return()));
    await this.#context.dispose();
  }
}
