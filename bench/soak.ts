/**
 * Twelve lazy models in memory for three, sixteen clients, for two minutes: every model loads again and again, and the idle
 * ones go to make room. Each model answers in words of its own, with the key of its prompt. Then a control: two models
 * with each other's file.
 *
 * npm run soak
 * SOAK_SECONDS=20 SOAK_SEED=7 npm run soak
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { isModelSupervisorError, ModelSupervisor, nodeLlamaCpp } from "../src/index.js";
import type { ModelManager } from "../src/index.js";
import { sharedEngine } from "../src/backends/node-llama-cpp/engine.js";
import { makeRecallModel, recallKeys } from "../src/testing/index.js";
import { seededRandom } from "../src/testing/gguf/random.js";
import { collectGarbage } from "./support/garbage.js";
import { count, isQuick } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { ANSWERED, embeddedText, runRequest, SHARES, SOAK_CONTEXT } from "./support/soak-requests.js";
import type { Outcome, Shares, Subject, Verdict } from "./support/soak-requests.js";

const NAMES = "alpha beta gamma delta epsilon zeta theta iota kappa lambda sigma omega".split(" ");
const RESIDENT = 3;
const CLIENTS = 16;
const SECONDS = Number(process.env["SOAK_SECONDS"] ?? (isQuick ? 10 : 120));
const CONTROL_SECONDS = Math.min(5, SECONDS);
const SEED = Number(process.env["SOAK_SEED"] ?? 1);
/** How often a client goes on with the model that it asked last. */
const STAYS = 0.5;
const TTL_MS = 60;
const SWEEP_MS = 20;
const UNLOAD_EVERY_MS = 500;
const FORCED = 0.2;
const OPTIONS = {
  mode: "server",
  capabilities: ["generate", "chat", "embed"],
  contextSize: SOAK_CONTEXT,
  parallel: 2,
} as const;
const KINDS: Shares = { ...SHARES, generate: 0.3, embed: 0.2, bad: 0 };

/**
 * What the C library keeps of freed memory is bounded by these: some thousand loads otherwise leave it in pieces, which is
 * no leak, and counts as one here.
 */
export const SOAK_ENVIRONMENT = { MALLOC_ARENA_MAX: "1", MALLOC_TRIM_THRESHOLD_: "131072" } as const;

const LEAST_ANSWERED = 0.9;
const LEAST_LOADS = Math.ceil((5 * SECONDS) / 120);
const LEAST_EVICTIONS = Math.ceil((50 * SECONDS) / 120);
const MOST_GROWTH = 0.1;
const FALLS_QUIET_WITHIN_MS = 10_000;

export async function soak(): Promise<Figure[]> {
  const folder = await mkdtemp(path.join(tmpdir(), "soak-"));
  const unhandled: unknown[] = [];
  process.on("unhandledRejection", (reason) => unhandled.push(reason));
  try {
    const files = new Map<string, string>();
    for (const name of NAMES) {
      const [file] = await makeRecallModel(path.join(folder, `${name}.gguf`), { opening: openingOf(name) });
      files.set(name, file);
    }
    await using models = await ModelSupervisor.start({
      name: "soak",
      backend: nodeLlamaCpp({ calibrationFile: false }),
      memoryBudget: "unlimited",
      overBudget: "evict-idle",
      maxThreads: 1,
      defaultTtlMs: TTL_MS,
      sweepIntervalMs: SWEEP_MS,
    });
    let needBytes = 0;
    for (const [name, file] of files) {
      await models.register(name, file, OPTIONS);
      needBytes = Math.max(needBytes, (await models.plan(file, OPTIONS)).requiredBytes);
    }
    await models.setMemoryBudget(Math.floor((RESIDENT + 0.5) * needBytes));
    const subjects = await warmUp(models);
    const before = await memoryNow();
    const lives = watchLives(models);

    const { outcomes, unloads } = await runFor(SECONDS, models, subjects, SEED);
    const left = await whatIsLeft(models);
    await unloadAll(models);
    const after = await memoryNow();
    const { reserved, unreleased } = held(models);
    const seen = lives.stop();

    await swapFiles(models, files, NAMES.slice(0, 2));
    const control = await runFor(CONTROL_SECONDS, models, subjects.slice(0, 2), SEED + 1);
    await unloadAll(models);
    return [
      ...answers(outcomes),
      ...livesFigures(seen, unloads),
      left,
      {
        figure: "after unloading all: bytes reserved, models stuck, leases below zero or left",
        target: "0, 0, 0",
        measured: `${reserved}, ${unreleased}, ${models.list().reduce((sum, { leases }) => sum + Math.abs(leases), 0)}`,
        met: reserved === 0 && unreleased === 0 && models.list().every(({ leases }) => leases === 0),
      },
      {
        figure:
          "RSS after unloading all, against the start (measured when each model had been loaded once, asked and unloaded; garbage collected both times; " +
          `${Object.entries(SOAK_ENVIRONMENT)
            .map((pair) => pair.join("="))
            .join(" ")})`,
        target: `≤ × ${1 + MOST_GROWTH}`,
        measured: `× ${(after.rssMiB / before.rssMiB).toFixed(3)} (${before.rssMiB.toFixed(1)} → ${after.rssMiB.toFixed(1)} MiB; JavaScript heap ${before.heapMiB.toFixed(1)} → ${after.heapMiB.toFixed(1)})`,
        met: after.rssMiB / before.rssMiB <= 1 + MOST_GROWTH,
      },
      { figure: "unhandled rejections", target: "0", measured: `${unhandled.length}`, met: unhandled.length === 0 },
      controlFigure(control.outcomes),
    ];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Three words that no other model says. */
function openingOf(name: string): string {
  return `${name} model says`;
}

/** Loads each model once, and learns its vectors. */
async function warmUp(models: ModelManager): Promise<Subject[]> {
  const subjects: Subject[] = [];
  for (const name of NAMES) {
    const embeddings = new Map<string, readonly number[]>();
    for (const key of recallKeys) embeddings.set(key, (await models.embed(name, embeddedText(key))).embedding);
    subjects.push({ modelId: name, opening: openingOf(name), embeddings });
  }
  await runFor(2, models, subjects, SEED + 2);
  await unloadAll(models);
  return subjects;
}

interface Run {
  readonly outcomes: readonly Outcome[];
  /** What the unloads at random came to. */
  readonly unloads: readonly string[];
}

/** Each client asks one model after the other; somebody else unloads them now and then. */
async function runFor(seconds: number, models: ModelManager, subjects: readonly Subject[], seed: number): Promise<Run> {
  const until = performance.now() + seconds * 1_000;
  const outcomes: Outcome[] = [];
  const unloads: string[] = [];
  let next = 0;
  const client = async (_: unknown, index: number) => {
    const random = seededRandom(seed * 7_919 + index);
    let subject = oneOf(subjects, random);
    while (performance.now() < until) {
      if (random() > STAYS) subject = oneOf(subjects, random);
      const outcome = await runRequest({ models, subject, shares: KINDS, number: next++, seed, shift: 0 });
      outcomes.push(outcome);
      if (outcome.detail === "queue_full") await pause(20);
    }
  };
  const unloader = async () => {
    const random = seededRandom(seed);
    while (performance.now() < until) {
      await pause(UNLOAD_EVERY_MS);
      // of the loaded ones: an unload of one that is loading takes it away from all who wait for it
      const loaded = models.list().filter(({ status }) => status === "ready");
      if (loaded.length === 0) continue;
      const { id: modelId } = oneOf(loaded, random);
      const force = random() < FORCED;
      const what = force ? "forced" : "drained";
      await models.unload(modelId, { force, timeoutMs: force ? 0 : 1_000 }).then(
        () => unloads.push(what),
        (error: unknown) => unloads.push(`${what}: ${isModelSupervisorError(error) ? error.code : String(error)}`),
      );
    }
  };
  await Promise.all([...Array.from({ length: CLIENTS }, client), unloader()]);
  return { outcomes, unloads };
}

function oneOf<T>(items: readonly T[], random: () => number): T {
  const item = items[Math.floor(random() * items.length)];
  if (item === undefined) throw new RangeError("There is none");
  return item;
}

/** What the events say. */
interface Lives {
  readonly loads: ReadonlyMap<string, number>;
  readonly unloads: readonly string[];
  readonly errors: readonly string[];
  readonly refusals: number;
}

function watchLives(models: ModelManager): { stop(): Lives } {
  const loads = new Map<string, number>(NAMES.map((name) => [name, 0]));
  const unloads: string[] = [];
  const errors: string[] = [];
  let refusals = 0;
  const onReady = ({ modelId, loadMs }: { modelId: string; loadMs?: number }) => {
    if (loadMs !== undefined) loads.set(modelId, (loads.get(modelId) ?? 0) + 1);
  };
  const onUnloaded = ({ reason }: { reason: string }) => void unloads.push(reason);
  const onError = ({ error }: { error: { code: string } }) => void errors.push(error.code);
  const onRefused = () => void refusals++;
  models.on("model:ready", onReady);
  models.on("model:unloaded", onUnloaded);
  models.on("model:error", onError);
  models.on("budget:refused", onRefused);
  return {
    stop() {
      models.off("model:ready", onReady);
      models.off("model:unloaded", onUnloaded);
      models.off("model:error", onError);
      models.off("budget:refused", onRefused);
      return { loads, unloads, errors, refusals };
    },
  };
}

/** Once nobody asks any more: leases, queues, and whether what is claimed is what the resident models hold. */
async function whatIsLeft(models: ModelManager): Promise<Figure> {
  const deadline = performance.now() + FALLS_QUIET_WITHIN_MS;
  const isQuiet = () => models.list().every(({ leases, status }) => leases === 0 && status !== "loading");
  while (!isQuiet() && performance.now() < deadline) await pause(5);
  // some are to be resident when it is looked at: what the TTL leaves of them is chance
  await Promise.all(NAMES.slice(0, RESIDENT).map((name) => models.embed(name, "a text")));
  const leases = models.list().reduce((sum, info) => sum + info.leases + info.queued, 0);
  const resident = models.list().filter(({ status }) => status === "ready");
  const placed = resident.reduce((sum, { placement }) => sum + bytesOf(placement), 0);
  const { cpuRam, gpuVram } = await (await sharedEngine({ gpu: "auto", build: "never" })).getLlamaMemoryUsage();
  const { reserved } = held(models);
  return {
    figure: "at the end: leases and queued requests; bytes reserved, of the resident models, in the engine's own books",
    target: "0; the same three times, of at least one model",
    measured: `${leases}; ${reserved}, ${placed}, ${cpuRam + gpuVram} (${resident.length} resident)`,
    met: leases === 0 && resident.length > 0 && reserved === placed && reserved === cpuRam + gpuVram,
  };
}

/** After the garbage has been collected, and once the engine's own threads have had time to let go. */
async function memoryNow(): Promise<{ readonly rssMiB: number; readonly heapMiB: number }> {
  collectGarbage();
  await pause(200);
  collectGarbage();
  const { rss, heapUsed } = process.memoryUsage();
  return { rssMiB: rss / 2 ** 20, heapMiB: heapUsed / 2 ** 20 };
}

function held(models: ModelManager): { readonly reserved: number; readonly unreleased: number } {
  const { devices, unreleased } = models.memory();
  const [pool] = devices;
  return { reserved: pool?.reservedBytes ?? NaN, unreleased: unreleased.length };
}

function bytesOf(placement: Readonly<Record<string, number | undefined>> | undefined): number {
  return Object.values(placement ?? {}).reduce((sum: number, bytes) => sum + (bytes ?? 0), 0);
}

async function unloadAll(models: ModelManager): Promise<void> {
  await Promise.all(models.list().map(({ id }) => models.unload(id, { timeoutMs: FALLS_QUIET_WITHIN_MS })));
}

/** The damage of the control: the first of two ids serves the other's file, and the other way round. */
async function swapFiles(models: ModelManager, files: ReadonlyMap<string, string>, names: readonly string[]) {
  for (const [index, name] of names.entries()) {
    await models.remove(name);
    await models.register(name, files.get(names[1 - index] ?? "") ?? "", OPTIONS);
  }
}

function answers(outcomes: readonly Outcome[]): Figure[] {
  for (const { kind, verdict, detail } of outcomes)
    if (verdict === "wrong" || verdict === "untyped") console.log(`${kind}: ${verdict}: ${detail}`);
  const due = outcomes.filter(({ kind }) => ANSWERED.includes(kind));
  const answered = due.filter(({ verdict }) => verdict === "exact").length;
  const failures = count(
    outcomes.filter(({ verdict }) => verdict === "failed"),
    ({ kind, detail }) => `${kind} ${detail}`,
  );
  const of = (verdict: Verdict) => outcomes.filter((outcome) => outcome.verdict === verdict).length;
  return [
    {
      figure: `${NAMES.length} lazy models, memory for ${RESIDENT}, ${CLIENTS} clients for ${SECONDS} s, seed ${SEED}: ${outcomes.length} requests`,
      target: `no wrong answer; ≥ ${LEAST_ANSWERED * 100} % of the unaborted ones answered`,
      measured: `${of("wrong")} wrong; ${answered} of ${due.length} answered (${((100 * answered) / due.length).toFixed(1)} %)`,
      met: of("wrong") === 0 && answered / due.length >= LEAST_ANSWERED,
    },
    {
      figure: "their failures",
      target: "every one typed",
      measured: `${of("untyped")} untyped; typed: ${failures === "" ? "none" : failures}`,
      met: of("untyped") === 0,
    },
    {
      figure: "what became of them",
      target: "stated",
      measured: count(outcomes, ({ kind, verdict }) => `${kind} ${verdict}`),
      met: undefined,
    },
  ];
}

function livesFigures({ loads, unloads, errors, refusals }: Lives, byHand: readonly string[]): Figure[] {
  const perModel = [...loads.values()];
  const evictions = unloads.filter((reason) => reason === "eviction").length;
  return [
    {
      figure: "loads of each model, evictions",
      target: `≥ ${LEAST_LOADS}; ≥ ${LEAST_EVICTIONS}`,
      measured: `${Math.min(...perModel)} to ${Math.max(...perModel)} (${perModel.reduce((a, b) => a + b, 0)} in all); ${evictions}`,
      met: Math.min(...perModel) >= LEAST_LOADS && evictions >= LEAST_EVICTIONS,
    },
    {
      figure: "unloads by reason; at random; models in error; refusals",
      target: "stated",
      measured: `${count(unloads, (reason) => reason)}; ${count(byHand, (what) => what)}; ${errors.length === 0 ? "none" : count(errors, (code) => code)}; ${refusals}`,
      met: undefined,
    },
  ];
}

/** Most are to be wrong, or the run could not fail. */
function controlFigure(outcomes: readonly Outcome[]): Figure {
  const due = outcomes.filter(({ kind }) => ANSWERED.includes(kind) && kind !== "embed");
  const wrong = due.filter(({ verdict }) => verdict === "wrong").length;
  return {
    figure: "control: two models with each other's file (their vectors are the same)",
    target: "over 80 % of the answers wrong",
    measured: `${wrong} of ${due.length} wrong`,
    met: wrong > due.length * 0.8,
  };
}
