/** Finds out how the slots of a loaded model are best run: from the options, from an earlier load, or by measuring. */
import type { Llama, LlamaModel } from "node-llama-cpp";
import path from "node:path";
import type { SlotLayout } from "../../../model.js";
import type { ModelProfile } from "../../backend.js";
import { engineIsBusy } from "../engine-activity.js";
import type { GgufModel } from "../gguf-file.js";
import { takeLoadTurn } from "../load-turn.js";
import { decodeWidths } from "../scheduler/decode-width.js";
import { calibrate } from "./calibration.js";
import type { CalibrationFile, CalibrationKey } from "./calibration-file.js";
import { NotMeasurable } from "./lanes.js";
import {
  candidateSpreads,
  candidateWidths,
  isSameSpread,
  slotsOf,
  type Calibration,
  type Spread,
  type SpreadInput,
} from "./layout.js";

/** What a layout is chosen for. */
export interface LayoutSubject {
  readonly model: GgufModel;
  readonly profile: ModelProfile;
  readonly gpuLayers: number;
  readonly llama: Llama;
  /** Where earlier measurements are; `undefined`: nothing is measured. */
  readonly memory: CalibrationFile | undefined;
}

/** A layout that has been decided on. */
export interface ChosenLayout {
  readonly spread: Spread;
  /** How many slots advance in a step of a context with so many slots, by how many decode. */
  readonly decodeWidths: (slots: number) => readonly number[];
  readonly view: SlotLayout;
}

/** The spreads that a load may end with: its estimate must hold for all of them. */
export async function possibleSpreads(subject: LayoutSubject): Promise<readonly Spread[]> {
  const [fallback, ...others] = candidateSpreads(spreadInput(subject));
  // where there is one only, the file need not be read to know it
  if (subject.memory === undefined || others.length === 0) return [fallback];
  const known = await recall(subject);
  return known === undefined ? [fallback, ...others] : [known.spread];
}

/** @throws the signal's reason, or the engine's error if it cannot make a context. */
export async function chooseLayout(
  subject: LayoutSubject,
  native: LlamaModel,
  signal: AbortSignal,
): Promise<ChosenLayout> {
  const { profile, memory } = subject;
  const [fallback] = candidateSpreads(spreadInput(subject));
  const unmeasured = { spread: fallback, steps: [], measurements: [] };
  if (!hasChoice(subject)) return chosen(unmeasured, profile, "options");
  const known = await recall(subject);
  if (known !== undefined) return chosen(known, profile, "remembered");
  if (memory === undefined || engineIsBusy()) return chosen(unmeasured, profile, "default");
  // one at a time, until it is remembered: two would measure each other, or the reading of other weights, and each forget
  // what the other has found
  const end = await takeLoadTurn(signal);
  try {
    // by the load that was measured before this one, perhaps
    const meanwhile = await recall(subject);
    if (meanwhile !== undefined) return chosen(meanwhile, profile, "remembered");
    const found = await measure(subject, native, signal);
    if (found === undefined) return chosen(unmeasured, profile, "default");
    await memory.remember(keyOf(subject), found);
    return chosen(found, profile, "measured");
  } finally {
    end();
  }
}

async function measure(
  subject: LayoutSubject,
  native: LlamaModel,
  signal: AbortSignal,
): Promise<Calibration | undefined> {
  const { profile } = subject;
  try {
    return await calibrate({
      ...spreadInput(subject),
      model: native,
      decodeWidth: profile.decodeWidth,
      signal,
    });
  } catch (error) {
    if (error instanceof NotMeasurable) return undefined;
    throw error;
  }
}

function spreadInput({ model, profile, gpuLayers }: LayoutSubject): SpreadInput {
  const { parallel: slots, threads, threadsAreSet = false } = profile;
  return { slots, threads, isFixed: threadsAreSet || gpuLayers > 0, sizeBytes: model.sizeBytes };
}

function hasChoice(subject: LayoutSubject): boolean {
  const spreads = candidateSpreads(spreadInput(subject));
  const { parallel, decodeWidth } = subject.profile;
  return spreads.length > 1 || (decodeWidth === undefined && candidateWidths(parallel).length > 1);
}

/** One that this version would not choose, or that the file cannot hold rightly, is measured again. */
async function recall(subject: LayoutSubject): Promise<Calibration | undefined> {
  const known = await subject.memory?.recall(keyOf(subject));
  if (known === undefined) return undefined;
  const isCandidate = candidateSpreads(spreadInput(subject)).some((spread) => isSameSpread(spread, known.spread));
  return isCandidate ? known : undefined;
}

function keyOf({ model, profile, gpuLayers, llama }: LayoutSubject): CalibrationKey {
  const [file] = model.files;
  const { parallel, threads, threadsAreSet, decodeWidth, batchSize, kvCacheType, flashAttention } = profile;
  return {
    file: { name: path.basename(file.path), sizeBytes: model.sizeBytes, modifiedMs: file.mtimeMs },
    engine: `${llama.llamaCppRelease.release} ${llama.buildType} ${llama.gpu}`,
    options: { parallel, threads, threadsAreSet, decodeWidth, batchSize, kvCacheType, flashAttention, gpuLayers },
  };
}

function chosen(found: Calibration, { parallel, decodeWidth }: ModelProfile, by: SlotLayout["chosenBy"]): ChosenLayout {
  const { spread, steps, measurements } = found;
  const widths = (slots: number) =>
    decodeWidth === undefined
      ? decodeWidths(slots, steps)
      : Array.from({ length: slots + 1 }, (_, active) => Math.min(active, decodeWidth));
  const [slots = parallel] = slotsOf(parallel, spread.contexts);
  const view: SlotLayout = {
    contexts: spread.contexts,
    threadsPerContext: spread.threads,
    decodeWidth: widths(slots)[slots] ?? slots,
    chosenBy: by,
    measurements,
  };
  return { spread, decodeWidths: widths, view };
}
