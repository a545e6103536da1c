/** Measures how fast a loaded model decodes in each layout. Takes two to four seconds, more where single steps are slow. */
import type { LlamaModel } from "node-llama-cpp";
import { allSettled } from "../all-settled.js";
import { engineIsBusy } from "../engine-activity.js";
import type { StepTime } from "../scheduler/decode-width.js";
import { inTurn, median, timesAsLong } from "./in-turn.js";
import { NotMeasurable, withLanes, type Lanes } from "./lanes.js";
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

/** A candidate steps for about so long in each round, or so many steps. */
const TURN = { ms: 30, steps: 40 };
/** An odd number, so that one of them is in the middle. */
const ROUNDS = 7;
/** No round begins after so long: for two spreads that are compared, and for all widths. */
const PAIR_MS = 1_000;
const WIDTHS_MS = 2_500;
/** No spread is tried that may end after this time: a load is waiting. */
const SPREADS_MS = 8_000;
/** A spread whose first step is so many times slower than that of the usual one is not looked at any longer. */
const HOPELESS = 2;

export interface CalibrationInput extends SpreadInput {
  readonly model: LlamaModel;
  /** Set by the caller: then only the spread is measured. */
  readonly decodeWidth: number | undefined;
  readonly signal: AbortSignal;
}

interface Running extends CalibrationInput {
  /** Called before each step; throws where it is to be the last. */
  readonly check: () => void;
}

/** @throws NotMeasurable, the signal's reason, or the engine's error if it cannot make a context. */
export async function calibrate(given: CalibrationInput): Promise<Calibration> {
  let isOver = false;
  const check = () => {
    given.signal.throwIfAborted();
    // for good: no context begins a step on its own after another one has given up
    isOver ||= engineIsBusy();
    if (isOver) throw new NotMeasurable("the engine was busy");
  };
  const input = { ...given, check };
  const rates = await ratesOfSpreads(input);
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

/** The usual spread, and every other one beside it; without others there is nothing to measure. */
function ratesOfSpreads(input: Running): Promise<[SpreadRates, ...SpreadRates[]]> {
  const endsAt = performance.now() + SPREADS_MS;
  const [usual, ...others] = candidateSpreads(input);
  if (others.length === 0) return Promise.resolve([{ spread: usual, single: 0, full: 0 }]);
  return withLanes(usual, input, async (lanes) => {
    const rounds = await inTurn(turnsOf(lanes), ROUNDS, performance.now() + PAIR_MS);
    const ms = (index: number) => median(rounds.map((round) => round[index] ?? NaN));
    const known: SpreadRates = { spread: usual, full: (1_000 * input.slots) / ms(0), single: 1_000 / ms(1) };
    const rates: [SpreadRates, ...SpreadRates[]] = [known];
    for (const spread of others) {
      // what is so slow that it would use up the time is not the best one either
      if (measuringMs(spread, known, input.slots) > endsAt - performance.now()) continue;
      const gain = await gainOf(spread, lanes, ms(0), input);
      if (gain === undefined) continue;
      rates.push({ spread, single: known.single * gain.single, full: known.full * gain.full });
    }
    return rates;
  });
}

/** How many times as fast a spread is as the usual one; undefined for one that is hopeless beside it. */
function gainOf(spread: Spread, usual: readonly Lanes[], usualMs: number, input: Running) {
  return withLanes(spread, input, async (lanes) => {
    if ((await run(lanes, Infinity, 1)) > usualMs * HOPELESS) return undefined;
    const rounds = await inTurn([...turnsOf(usual), ...turnsOf(lanes)], ROUNDS, performance.now() + PAIR_MS);
    return { full: timesAsLong(rounds, 0, 2), single: timesAsLong(rounds, 1, 3) };
  });
}

/** A turn of all slots, and one of a single stream. */
function turnsOf(lanes: readonly Lanes[]) {
  return [() => stepMs(lanes, Infinity), () => stepMs(lanes.slice(0, 1), 1)];
}

/** By what each took beside the full width, so that all stand for the same moment. */
function stepsOf(spread: Spread, input: Running): Promise<StepTime[]> {
  const [slots = input.slots] = slotsOf(input.slots, spread.contexts);
  const widths = candidateWidths(slots);
  if (widths.length === 1) return Promise.resolve([]);
  return withLanes(spread, input, async (lanes) => {
    const turns = widths.map((width) => () => stepMs(lanes, width));
    const rounds = await inTurn(turns, ROUNDS, performance.now() + WIDTHS_MS);
    const timed = widths.slice(0, rounds[0]?.length);
    const fullMs = median(rounds.map(([ms = NaN]) => ms));
    return timed.map((width, index) => ({ width, ms: fullMs * timesAsLong(rounds, index, 0) }));
  });
}

/** Milliseconds of a step in which `width` lanes of every context advance. Each context goes on by itself, as in service. */
async function stepMs(contexts: readonly Lanes[], width: number): Promise<number> {
  await allSettled(contexts.map((lanes) => lanes.restart()));
  const firstMs = await run(contexts, width, 1);
  const steps = Math.min(TURN.steps, Math.round(TURN.ms / firstMs));
  return steps <= 1 ? firstMs : run(contexts, width, steps);
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
