/**
 * Does a model that is disposed at any moment take the process down, or leave a promise hanging? In a child process: so
 * many rounds of a disposal (or an aborted load) at a random time under generation, chat, embedding and loading. Then
 * the control, which shows that the question is a real one: the same engine, disposed without waiting.
 *
 * node --import tsx bench/dispose-under-load.ts [rounds = 200] [seed = 1]
 */
import { fork } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { makeRandomModel } from "../src/testing/gguf/index.js";
import { table, type Figure } from "./support/measure.js";

const CHILD = fileURLToPath(new URL("./dispose-under-load-child.ts", import.meta.url));
/** A child that takes longer hangs: a promise has not settled, or something keeps the process alive. */
const HANGS_AFTER_MS = 120_000;
/** The control crashes at some time or other; a few children are enough to see it. */
const CONTROL_CHILDREN = 5;

interface Ended {
  readonly code: number | null;
  readonly signal: string | null;
  readonly report: unknown;
}

function run(mode: "drained" | "undrained", file: string, rounds: number, seed: number): Promise<Ended> {
  return new Promise((resolve) => {
    let report: unknown;
    const child = fork(CHILD, [mode, file, `${rounds}`, `${seed}`], {
      execArgv: ["--import", "tsx"],
      stdio: ["ignore", "inherit", "ignore", "ipc"],
    });
    const timer = setTimeout(() => child.kill("SIGKILL"), HANGS_AFTER_MS);
    child.on("message", (message) => {
      report = message;
    });
    child.on("exit", (code, signal) => {
      clearTimeout(timer);
      resolve({ code, signal, report });
    });
  });
}

export async function disposeUnderLoad(rounds = 200, seed = 1): Promise<Figure[]> {
  const folder = await mkdtemp(join(tmpdir(), "dispose-under-load-"));
  try {
    const [file] = await makeRandomModel(join(folder, "random.gguf"));
    const drained = await run("drained", file, rounds, seed);
    let control: Ended = { code: 0, signal: null, report: undefined };
    for (let index = 0; index < CONTROL_CHILDREN && control.code === 0; index++)
      control = await run("undrained", file, rounds, seed + index);
    return [
      {
        figure: `${rounds} disposals at random times under load`,
        target: "no crash, every promise settles, nothing is left, the process ends",
        measured: `${ending(drained)} ${JSON.stringify(drained.report)}`,
        met: drained.code === 0 && bytesLeft(drained.report) === 0,
      },
      {
        figure: "the same engine, disposed without waiting (control)",
        target: "crashes",
        measured: ending(control),
        met: control.code !== 0,
      },
    ];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function bytesLeft(report: unknown): unknown {
  return typeof report === "object" && report !== null && "bytesLeft" in report ? report.bytesLeft : undefined;
}

function ending({ code, signal }: Ended): string {
  return signal === null ? `exit code ${code}` : `killed by ${signal}`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [rounds = "200", seed = "1"] = process.argv.slice(2);
  const figures = await disposeUnderLoad(Number(rounds), Number(seed));
  console.log(table(figures));
  process.exitCode = figures.every(({ met }) => met === true) ? 0 : 1;
}
