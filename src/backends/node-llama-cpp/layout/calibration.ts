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
  type Calibration,
  type Spread,
  type SpreadInput,
  type SpreadRates,
} from "./layout.js";

/** Enough for a step, and small: what is measured is the engine, not the attention over a long text. */
const CONTEXT_TOKENS = 256;
/** A candidate is measured for about so long, or in two runs of so many steps. */
const CANDIDATE = { ms: 120, steps: 24 };
/** No further widths are tried after this time. */
const WIDTHS_MS = 1_500;
/** No further spreads are tried that may end after this time. */
const SPREADS_MS = 8_000;
/** What takes so long is given up: the machine has something else to do, and a load is waiting. */
const LIMIT_MS = 10_000;
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

/** Figures that were measured now would be wrong: the engine or the machine has something else to do. */
export class NotMeasurable extends Error {}

/** @throws NotMeasurable, the signal's reason, or the engine's error. */
export async function calibrate(given: CalibrationInput): Promise<Calibration> {
  const startedAt = performance.now();
  let isOver = false;
  const check = () => {
    given.signal.throwIfAborted();
    // for good: no context begins a step on its own after another one has given up
    isOver ||= engineIsBusy();
    if (isOver) throw new NotMeasurable("the engine was busy");
    if (performance.now() > startedAt + LIMIT_MS) throw new NotMeasurable("the machine was too slow");
  };
  const input = { ...given, check };
  const [first, ...others] = candidateSpreads(input);
  const rates: [SpreadRates, ...SpreadRates[]] = [await ratesOf(first, input)];
  for (const spread of others) {
    // what is so slow that it would use up the time is not the best one either
    const leftMs = startedAt + SPREADS_MS - performance.now();
    if (measuringMs(spread, rates[0], input.slots) < leftMs) rates.push(await ratesOf(spread, input));
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

function ratesOf(spread: Spread, input: Running): Promise<SpreadRates> {
  return withLanes(spread, input, async (contexts) => {
    const [one] = contexts;
    const singleMs = one === undefined ? Infinity : await stepMs([one], 1);
    const fullMs = await stepMs(contexts, Infinity);
    return { spread, single: 1_000 / singleMs, full: (1_000 * input.slots) / fullMs };
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
  const run = async (steps: number) => {
    const startedAt = performance.now();
    await allSettled(
      contexts.map(async (lanes) => {
        for (let step = 0; step < steps; step++) await lanes.step(width);
      }),
    );
    return (performance.now() - startedAt) / steps;
  };
  const firstMs = await run(1);
  const steps = Math.min(CANDIDATE.steps, Math.round(CANDIDATE.ms / firstMs / 2));
  return steps <= 1 ? Math.min(firstMs, await run(1)) : Math.min(await run(steps), await run(steps));
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
    await allSettled(turn.map((lane) => this.#advance(lane)));
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
