/** What a long prompt does to the others, and how soon it can be given up. One thread. */
import { setTimeout as pause } from "node:timers/promises";
import { LlamaContextSequence } from "node-llama-cpp";
import type { GenerateOptions, ModelManager } from "../src/index.js";
import { BareModel } from "./support/bare-loops.js";
import { Managed } from "./support/managed.js";
import { alternate, isQuick, median, percentile } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";

const SLICE_TOKENS = 128;
const SENTENCE = "the cat is blue and the dog is not. ";

export async function prefill(): Promise<Figure[]> {
  return [...(await shortBesideLong()), ...(await gaps()), ...(await aborts())];
}

/** A text of so many tokens, or a few less. */
async function textOf(models: ModelManager, tokens: number): Promise<string> {
  const many = 16;
  const perSentence = (await models.tokenize("m", SENTENCE.repeat(many))).length / many;
  return SENTENCE.repeat(Math.floor((tokens - 1) / perSentence));
}

/** Options of a request that begins with an empty cache. */
let scopes = 0;
const fresh = (maxTokens: number) =>
  ({ maxTokens, temperature: 0, scope: `fresh ${scopes++}` }) satisfies GenerateOptions;

/** A request of three tokens that comes when a tenth of a long prompt has been evaluated. */
async function shortBesideLong(): Promise<Figure[]> {
  const longTokens = isQuick ? 400 : 1_200;
  const most = { short: 0.3, long: 1.2 };
  await using managed = await Managed.load(await benchModel("large-f16"), {
    maxThreads: 1,
    contextSize: 1_280,
    parallel: 2,
  });
  const { models } = managed;
  const text = await textOf(models, longTokens);
  let promptTokens = 0;
  const long = async () => {
    const { usage, timings } = await models.generate("m", text, fresh(1));
    if (usage.cachedTokens > 0) throw new Error("The long prompt was not cold");
    promptTokens = usage.promptTokens;
    return timings.timeToFirstTokenMs;
  };
  let undisturbed = await long();
  const shorts: number[] = [];
  const times = await alternate(
    { rounds: isQuick ? 1 : 5 },
    {
      alone: async () => (undisturbed = await long()),
      disturbed: async () => {
        const running = long();
        await pause(undisturbed / 10);
        const began = performance.now();
        await models.generate("m", "hello", fresh(3));
        shorts.push(performance.now() - began);
        return running;
      },
    },
  );
  const alone = median(times.alone);
  const shortShare = median(shorts) / alone;
  const longShare = median(times.disturbed.map((time, round) => time / (times.alone[round] ?? NaN)));
  return [
    {
      figure: `a request of 3 tokens beside a prefill of ${promptTokens}, large-f16: answered after`,
      target: `≤ ${most.short} × the prefill`,
      measured: `${shortShare.toFixed(2)} × (${median(shorts).toFixed(0)} against ${alone.toFixed(0)} ms)`,
      met: shortShare <= most.short,
    },
    {
      figure: "the prefill beside it",
      target: `≤ ${most.long} × undisturbed`,
      measured: `${longShare.toFixed(2)} × (${median(times.disturbed).toFixed(0)} ms)`,
      met: longShare <= most.long,
    },
  ];
}

/** A running stream while a prompt of 3,000 tokens is admitted, against slices of that prompt on the bare library. */
async function gaps(): Promise<Figure[]> {
  const longTokens = isQuick ? 1_000 : 3_000;
  const contextSize = 4_096;
  const most = 2;
  const source = await benchModel("small-f16");
  await using managed = await Managed.load(source, { maxThreads: 1, contextSize, parallel: 2 });
  await using model = await BareModel.load(source);
  const { models } = managed;
  const bare = await model.loops(1, contextSize);
  const text = await textOf(models, longTokens);
  const tokens = bare.tokenize(text);

  const seen: number[] = [];
  const admit = async () => {
    const before = seen.length;
    let long: Promise<unknown> | undefined;
    let isOver = false;
    let pieces = 0;
    let last = NaN;
    for await (const _ of models.stream("m", "hello", fresh(1_000))) {
      const now = performance.now();
      if (long !== undefined) seen.push(now - last);
      if (isOver) break;
      last = now;
      if (++pieces === 20) long = models.generate("m", text, fresh(1)).then(() => (isOver = true));
    }
    await long;
    if (!isOver) throw new Error("The stream ended before the long prompt was admitted");
    return seen.length - before;
  };
  const slices: number[] = [];
  await alternate(
    { rounds: isQuick ? 1 : 7 },
    {
      admit,
      slices: async () => slices.push(...(await bare.slices(tokens, SLICE_TOKENS))),
    },
  );
  const [gap, slice] = [percentile(seen, 0.95), median(slices)];
  return [
    {
      figure: `gap between two tokens while a prompt of ${tokens.length} is admitted, small-f16 (${seen.length} gaps)`,
      target: `p95 ≤ ${most} × a bare slice of ${SLICE_TOKENS} tokens of it`,
      measured: `${(gap / slice).toFixed(2)} × (p95 ${gap.toFixed(0)}, p50 ${median(seen).toFixed(0)}, slice ${slice.toFixed(0)} ms)`,
      met: gap / slice <= most,
    },
  ];
}

/** A prefill of over five seconds that is given up at several points of it. */
async function aborts(): Promise<Figure[]> {
  const longTokens = isQuick ? 500 : 1_500;
  const shares = isQuick ? [0.3] : [0.1, 0.25, 0.4, 0.55, 0.7, 0.85];
  const most = { rejectsMs: 700, freeMs: 300 };
  await using managed = await Managed.load(await benchModel("large-f16"), {
    maxThreads: 1,
    contextSize: 1_600,
    parallel: 1,
  });
  const { models } = managed;
  const text = await textOf(models, longTokens);
  const { timings } = await models.generate("m", text, fresh(1));
  const calls = recordCalls();

  const seen = { rejected: [] as number[], free: [] as number[], next: [] as number[], slice: [] as number[] };
  try {
    for (const share of shares) {
      calls.length = 0;
      const controller = new AbortController();
      const reason = new Error("given up");
      const long = models.generate("m", text, { ...fresh(1), signal: controller.signal });
      const outcome = long.then(
        () => new Error("The prefill ended before it was given up"),
        (error: unknown) => error,
      );
      await pause(timings.prefillMs * share);
      const aborted = performance.now();
      controller.abort(reason);
      if ((await outcome) !== reason) throw await outcome;
      seen.rejected.push(performance.now() - aborted);
      // before the slot is free, so that it waits for it
      const next = models.generate("m", "hello", fresh(1));
      const submitted = performance.now();
      const { timings: nextTimings } = await next;
      const running = calls.findLast(({ began }) => began <= aborted);
      if (running?.ended === undefined) throw new Error("No slice was seen to run at the abort");
      seen.slice.push(running.ended - aborted);
      seen.free.push(submitted + nextTimings.queueMs - running.ended);
      seen.next.push(submitted + nextTimings.queueMs - aborted);
      if (models.info("m")?.leases !== 0) throw new Error("A lease was not given back");
    }
  } finally {
    calls.stop();
  }
  const worst = (values: readonly number[]) => `${Math.max(...values).toFixed(1)} ms`;
  const told = `a prefill of ${(timings.prefillMs / 1000).toFixed(1)} s given up at ${shares.length} points of it, large-f16`;
  return [
    {
      figure: `${told}: the caller is answered after`,
      target: `≤ ${most.rejectsMs} ms, a prefill of over 5 s`,
      measured: `${worst(seen.rejected)} at most`,
      met: Math.max(...seen.rejected) <= most.rejectsMs && timings.prefillMs > 5_000,
    },
    {
      figure: "the next request has the slot, counted from the end of the slice that ran",
      target: `≤ ${most.freeMs} ms`,
      measured: `${worst(seen.free)} at most (${worst(seen.next)} from the abort, of which the slice ${worst(seen.slice)})`,
      met: Math.max(...seen.free) <= most.freeMs,
    },
  ];
}

interface Call {
  readonly began: number;
  ended: number | undefined;
}

/** When the engine was asked to evaluate a piece of a prompt, and when it had. */
function recordCalls(): Call[] & { stop(): void } {
  const { prototype } = LlamaContextSequence;
  const original = prototype.evaluateWithoutGeneratingNewTokens;
  const calls: Call[] = [];
  prototype.evaluateWithoutGeneratingNewTokens = async function (...given) {
    const call: Call = { began: performance.now(), ended: undefined };
    calls.push(call);
    await original.apply(this, given);
    call.ended = performance.now();
  };
  return Object.assign(calls, { stop: () => (prototype.evaluateWithoutGeneratingNewTokens = original) });
}
