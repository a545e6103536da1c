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

const [rounds = "200", seed = "1"] = process.argv.slice(2);
const CHILD = fileURLToPath(new URL("./dispose-under-load-child.ts", import.meta.url));
/** A child that takes longer hangs: a promise has not settled. */
const HANGS_AFTER_MS = 300_000;
/** The control crashes at some time or other; a few children are enough to see it. */
const CONTROL_CHILDREN = 5;

interface Ended {
  readonly code: number | null;
  readonly signal: string | null;
  readonly report: unknown;
}

function run(mode: "drained" | "undrained", file: string, childSeed: string): Promise<Ended> {
  return new Promise((resolve) => {
    let report: unknown;
    const child = fork(CHILD, [mode, file, rounds, childSeed], { execArgv: ["--import", "tsx"], stdio: ["ignore", "inherit", "pipe", "ipc"] });
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

const folder = await mkdtemp(join(tmpdir(), "dispose-under-load-"));
try {
  const [file] = await makeRandomModel(join(folder, "random.gguf"));
  const drained = await run("drained", file, seed);
  console.log("this library:", JSON.stringify(drained));

  let control: Ended = { code: 0, signal: null, report: undefined };
  for (let index = 0; index < CONTROL_CHILDREN && control.code === 0; index++) {
    control = await run("undrained", file, `${Number(seed) + index}`);
    console.log("control, without the drain:", JSON.stringify(control));
  }

  const isSafe = drained.code === 0;
  const isShown = control.code !== 0;
  console.log(isSafe ? "No crash, every promise settled." : "FAILED: the child did not end well.", isShown ? "The control crashed, as it should." : "FAILED: the control did not crash.");
  process.exitCode = isSafe && isShown ? 0 : 1;
} finally {
  await rm(folder, { recursive: true, force: true });
}
