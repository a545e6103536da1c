/** A hundred lives of one model in a child process: what grows? */
import { fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import { ModelSupervisor } from "../src/index.js";
import { benchModel } from "./support/models.js";
import type { Figure } from "./support/measure.js";

const CYCLES = 100;
const EARLY = 20;

interface Sample {
  readonly rssBytes: number;
  readonly heapBytes: number;
  readonly reservedBytes: number;
  readonly handles: number;
  readonly unhandled: number;
}

/** In the child. */
async function runCycles(): Promise<void> {
  const samples: Sample[] = [];
  let unhandled = 0;
  process.on("unhandledRejection", () => (unhandled += 1));
  const file = await benchModel("small-f16");
  const models = await ModelSupervisor.start({ name: "cycles", memoryBudget: "unlimited", maxThreads: 1 });
  for (let cycle = 1; cycle <= CYCLES; cycle++) {
    await models.load("m", file, { contextSize: 512, parallel: 2 });
    await models.generate("m", "the cat is blue", { maxTokens: 8, temperature: 0 });
    await models.unload("m");
    globalThis.gc?.();
    const { rss, heapUsed } = process.memoryUsage();
    const reservedBytes = models.memory().devices.reduce((sum, device) => sum + device.reservedBytes, 0);
    samples.push({
      rssBytes: rss,
      heapBytes: heapUsed,
      reservedBytes,
      handles: process.getActiveResourcesInfo().length,
      unhandled,
    });
  }
  await models.close();
  process.send?.({ early: samples[EARLY - 1], late: samples[CYCLES - 1] });
  process.disconnect();
}

function inChild(env: NodeJS.ProcessEnv): Promise<{ early: Sample; late: Sample; exitCode: number | null }> {
  return new Promise((resolve, reject) => {
    const child = fork(fileURLToPath(import.meta.url), ["child"], {
      execArgv: ["--expose-gc", "--import", "tsx"],
      env: { ...process.env, ...env },
    });
    let result: { early: Sample; late: Sample } | undefined;
    child.on("message", (message) => (result = message as { early: Sample; late: Sample }));
    child.on("exit", (exitCode) =>
      result ? resolve({ ...result, exitCode }) : reject(new Error(`the child ended with ${exitCode}`)),
    );
  });
}

export async function cycles(): Promise<Figure[]> {
  const plain = await inChild({});
  const tuned = await inChild({ MALLOC_ARENA_MAX: "1", MALLOC_TRIM_THRESHOLD_: "131072" });
  const growth = ({ early, late }: { early: Sample; late: Sample }) => late.rssBytes / early.rssBytes;
  const heapGrowth = plain.late.heapBytes / plain.early.heapBytes;
  const rss = (run: typeof plain) =>
    `× ${growth(run).toFixed(3)} (${mib(run.early.rssBytes)} → ${mib(run.late.rssBytes)} MiB)`;
  return [
    {
      figure: `RSS after cycle ${CYCLES} against cycle ${EARLY}`,
      target: "≤ × 1.3",
      measured: rss(plain),
      met: growth(plain) <= 1.3,
    },
    {
      figure: "the same with MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=131072",
      target: "≤ × 1.03",
      measured: rss(tuned),
      met: growth(tuned) <= 1.03,
    },
    {
      figure: "JavaScript heap, the same cycles",
      target: "flat",
      measured: `× ${heapGrowth.toFixed(3)} (${mib(plain.early.heapBytes)} → ${mib(plain.late.heapBytes)} MiB)`,
      met: heapGrowth <= 1.05,
    },
    {
      figure: "reserved bytes, handles more than at cycle 20, unhandled rejections; the child exits by itself",
      target: "0, 0, 0; exit code 0",
      measured: `${plain.late.reservedBytes}, ${plain.late.handles - plain.early.handles}, ${plain.late.unhandled}; exit code ${plain.exitCode}`,
      met:
        plain.late.reservedBytes === 0 &&
        plain.late.handles <= plain.early.handles &&
        plain.late.unhandled === 0 &&
        plain.exitCode === 0,
    },
  ];
}

function mib(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(1);
}

if (process.argv[2] === "child") await runCycles();
