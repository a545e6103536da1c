/**
 * Many clients with all kinds of requests on a few slots, for as long as it takes: 64 clients, 2,000 requests, 4 slots,
 * a model whose answer is the key word of its prompt. Then the controls: other keys in the prompts than are looked for, and
 * slots that remember each other's tokens instead of their own.
 *
 * SOAK_REQUESTS=500 SOAK_SEED=7 npm run bench server-soak
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { LlamaContextSequence } from "node-llama-cpp";
import { ModelSupervisor } from "../src/index.js";
import type { ModelManager } from "../src/index.js";
import { makeRecallModel } from "../src/testing/index.js";
import { collectGarbage } from "./support/garbage.js";
import { count, isQuick } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { ANSWERED, keyOf, runRequest, SOAK_CONTEXT } from "./support/soak-requests.js";
import type { Outcome, Verdict } from "./support/soak-requests.js";

const CLIENTS = 64;
const SLOTS = 4;
const REQUESTS = Number(process.env["SOAK_REQUESTS"] ?? (isQuick ? 300 : 2_000));
const SEED = Number(process.env["SOAK_SEED"] ?? 1);
/** Before the heap is measured for the first time: caches fill and code is compiled. */
const WARM_UP_REQUESTS = 300;
const CONTROL_REQUESTS = 600;
const LEAST_ANSWERED = 0.9;
const MOST_GROWTH_MIB = 30;
const FALLS_QUIET_WITHIN_MS = 10_000;

export async function serverSoak(): Promise<Figure[]> {
  const folder = await mkdtemp(path.join(tmpdir(), "server-soak-"));
  const unhandled: unknown[] = [];
  process.on("unhandledRejection", (reason) => unhandled.push(reason));
  try {
    const [file] = await makeRecallModel(path.join(folder, "recall.gguf"));
    await using models = await ModelSupervisor.start({ name: "soak", memoryBudget: "unlimited", maxThreads: 1 });
    await models.load("m", file, { contextSize: SOAK_CONTEXT, parallel: SLOTS });

    await runAll(models, { requests: WARM_UP_REQUESTS, seed: SEED + 1 });
    await quiet(models);
    const before = heapMiB();
    const began = performance.now();
    const outcomes = await runAll(models, { requests: REQUESTS, seed: SEED });
    const seconds = (performance.now() - began) / 1000;
    await quiet(models);
    const growth = heapMiB() - before;
    const left = `leases ${models.info("m")?.leases}, queued ${models.info("m")?.queued}`;
    const slots = await usableSlots(models);
    const control = await runAll(models, { requests: CONTROL_REQUESTS, seed: SEED, shift: 1 });
    const confused = await withConfusedSlots(() => runAll(models, { requests: CONTROL_REQUESTS, seed: SEED + 2 }));
    await quiet(models);
    // a model that is still held stays: its bytes are told below
    await models
      .unload("m", { timeoutMs: FALLS_QUIET_WITHIN_MS })
      .catch((error: unknown) => console.log(String(error)));
    const { devices, unreleased } = models.memory();
    const reserved = devices.reduce((sum, { reservedBytes }) => sum + reservedBytes, 0) + unreleased.length;
    return [
      ...answers(outcomes, seconds),
      {
        figure: "what is left: leases and the queue; slots that work; bytes reserved after the unload",
        target: `leases 0, queued 0; ${SLOTS} of ${SLOTS}; 0`,
        measured: `${left}; ${slots} of ${SLOTS}; ${reserved}`,
        met: left === "leases 0, queued 0" && slots === SLOTS && reserved === 0,
      },
      {
        figure: "unhandled rejections; heap growth over the run",
        target: `0; < ${MOST_GROWTH_MIB} MiB`,
        measured: `${unhandled.length}; ${growth.toFixed(1)} MiB (from ${before.toFixed(1)})`,
        met: unhandled.length === 0 && growth < MOST_GROWTH_MIB,
      },
      controlFigure("another's key in the prompt", control, 0.8),
      controlFigure("slots that take each other's tokens for theirs", confused, 0),
    ];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

interface Run {
  readonly requests: number;
  readonly seed: number;
  readonly shift?: number;
}

/** Each client runs one request after the other until all have been run. */
async function runAll(models: ModelManager, { requests, seed, shift = 0 }: Run): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  let next = 0;
  const client = async () => {
    while (next < requests) {
      const outcome = await runRequest({ models, number: next++, seed, shift });
      outcomes.push(outcome);
      if (outcome.detail === "queue_full") await pause(20);
    }
  };
  await Promise.all(Array.from({ length: CLIENTS }, client));
  return outcomes;
}

/** Streams that nobody reads any more run to their end. */
async function quiet(models: ModelManager): Promise<void> {
  const deadline = performance.now() + FALLS_QUIET_WITHIN_MS;
  while (models.info("m")?.leases !== 0 && performance.now() < deadline) await pause(5);
}

/** How many of as many requests as there are slots get one at once and are answered rightly. */
async function usableSlots(models: ModelManager): Promise<number> {
  const filler = "some text that stands before it ".repeat(60);
  const results = await Promise.all(
    Array.from({ length: SLOTS }, async (_, index) => {
      const key = keyOf(index);
      const prompt = `${filler} the key is ${key}`;
      const { text, timings } = await models.generate("m", prompt, { temperature: 0, scope: `slot ${index}` });
      return text.trim() === `your word is ${key}` ? timings : undefined;
    }),
  );
  const shortestRun = Math.min(...results.map((timings) => (timings?.prefillMs ?? 0) + (timings?.decodeMs ?? 0)));
  // who has to wait for a slot waits for as long as another one's whole run
  return results.filter((timings) => timings !== undefined && timings.queueMs < shortestRun / 2).length;
}

function answers(outcomes: readonly Outcome[], seconds: number): Figure[] {
  for (const { kind, verdict, detail } of outcomes)
    if (verdict === "wrong" || verdict === "untyped") console.log(`${kind}: ${verdict}: ${detail}`);
  const due = outcomes.filter(({ kind }) => ANSWERED.includes(kind));
  const answered = due.filter(({ verdict }) => verdict === "exact").length;
  const counts = count(outcomes, ({ kind, verdict }) => `${kind} ${verdict}`);
  const failures = count(
    outcomes.filter(({ verdict }) => verdict === "failed"),
    ({ kind, detail }) => `${kind} ${detail}`,
  );
  const of = (verdict: Verdict) => outcomes.filter((outcome) => outcome.verdict === verdict).length;
  const cached = outcomes.reduce((sum, { cachedTokens }) => sum + cachedTokens, 0);
  return [
    {
      figure: `${CLIENTS} clients, ${outcomes.length} mixed requests on ${SLOTS} slots, seed ${SEED} (${seconds.toFixed(0)} s): answers`,
      target: `all exact; ≥ ${LEAST_ANSWERED * 100} % of the well-formed unaborted ones answered`,
      measured: `${of("wrong")} wrong; ${answered} of ${due.length} answered; ${cached} tokens reused`,
      met: of("wrong") === 0 && answered / due.length >= LEAST_ANSWERED,
    },
    {
      figure: "their failures",
      target: "every one typed",
      measured: `${of("untyped")} untyped; typed: ${failures === "" ? "none" : failures}`,
      met: of("untyped") === 0,
    },
    { figure: "what became of them", target: "stated", measured: counts, met: undefined },
  ];
}

/** A control is to get more than a share of `over` wrong, or the run above could not fail. */
function controlFigure(what: string, control: readonly Outcome[], over: number): Figure {
  const due = control.filter(({ kind }) => ANSWERED.includes(kind));
  const wrong = due.filter(({ verdict }) => verdict === "wrong").length;
  return {
    figure: `control: ${what}`,
    // with another key some are right all the same: those that `maxTokens` cuts before it
    target: over === 0 ? "some answers wrong" : `over ${over * 100} % of the answers wrong`,
    measured: `${wrong} of ${due.length} wrong`,
    met: wrong > due.length * over,
  };
}

/** While `work` runs, a sequence that is asked for its tokens gives those of the one that was asked before it. */
async function withConfusedSlots<T>(work: () => Promise<T>): Promise<T> {
  const { prototype } = LlamaContextSequence;
  const own = Object.getOwnPropertyDescriptor(prototype, "contextTokens");
  if (own?.get === undefined) throw new TypeError("The engine's sequences do not tell their tokens");
  const { get } = own;
  let before: unknown;
  Object.defineProperty(prototype, "contextTokens", {
    ...own,
    get(this: LlamaContextSequence): unknown {
      const tokens: unknown = get.call(this);
      const given = before ?? tokens;
      before = tokens;
      return given;
    },
  });
  try {
    return await work();
  } finally {
    Object.defineProperty(prototype, "contextTokens", own);
  }
}

function heapMiB(): number {
  collectGarbage();
  return process.memoryUsage().heapUsed / 2 ** 20;
}
