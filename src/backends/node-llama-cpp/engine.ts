/**
 * The one engine of this process. llama.cpp's logger is global to the process, and a second instance of the library
 * silences the first one's: so every backend and every supervisor here shares one, and what they ask of it is merged.
 */
import type { Llama } from "node-llama-cpp";
import { InvalidOptionError, isModelSupervisorError } from "../../errors.js";
import type { BuildChoice, GpuChoice } from "./engine-choice.js";

const KEPT_LINES = 64;
/** The lines about a failure arrive up to 5 ms after the promise has been rejected (measured). */
const LINES_ARRIVE_WITHIN_MS = 20;

let starting: { readonly build: BuildChoice; readonly llama: Promise<Llama> } | undefined;
/** `maxThreads` of each live user. */
const users = new Set<{ readonly maxThreads: number }>();
/** The engine's last errors, oldest first. */
const lines: { readonly number: number; readonly text: string }[] = [];
let lineCount = 0;

/** What the engine is started with. */
export interface EngineChoice {
  readonly gpu: GpuChoice;
  readonly build: BuildChoice;
}

/**
 * The engine, started by the first call. It is never stopped: it does not keep the process alive, and starting it anew
 * costs 0.4 s. A start that failed is tried again by the next call.
 * @throws InvalidOptionError if the engine runs already with another kind of GPU, or by another choice of build.
 */
export async function sharedEngine({ gpu, build }: EngineChoice): Promise<Llama> {
  starting ??= { build, llama: startEngine(gpu, build) };
  const started = starting;
  let llama: Llama;
  try {
    llama = await started.llama;
  } catch (error) {
    if (starting === started) starting = undefined;
    throw error;
  }
  if (gpu !== "auto" && gpu !== llama.gpu) throw chosenAlready("gpu", JSON.stringify(llama.gpu), gpu, `"auto" or `);
  if (build !== started.build) throw chosenAlready("build", `"${started.build}"`, build);
  return llama;
}

function chosenAlready(option: string, running: string, received: unknown, or = ""): InvalidOptionError {
  return new InvalidOptionError(
    option,
    `${or}${running}, with which the engine runs already in this process`,
    received,
  );
}

async function startEngine(gpu: GpuChoice, build: BuildChoice): Promise<Llama> {
  const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
  return getLlama({
    gpu,
    build,
    progressLogs: false,
    // Never the library's default, which is at least 4 whatever the machine has; the first user sets the real one.
    maxThreads: 1,
    logLevel: LlamaLogLevel.warn,
    logger: (level, text) => {
      if (level !== LlamaLogLevel.error && level !== LlamaLogLevel.fatal) return;
      lines.push({ number: lineCount++, text: text.trim() });
      if (lines.length > KEPT_LINES) lines.shift();
    },
  });
}

/**
 * Lets the engine use `maxThreads` threads for as long as this user lives: the largest of all users' holds, for each
 * one's contexts are created with its own number of threads. Returns the function that ends the use.
 */
export function useThreads(llama: Llama, maxThreads: number): () => void {
  const user = { maxThreads };
  const apply = () => {
    llama.maxThreads = Math.max(1, ...[...users].map((each) => each.maxThreads));
  };
  users.add(user);
  apply();
  return () => {
    users.delete(user);
    if (users.size > 0) apply();
  };
}

/** An engine call has failed; what the log said of it meanwhile. */
export class EngineLogError extends Error {
  readonly lines: readonly string[];
  constructor(what: string, lines: readonly string[], cause: unknown) {
    const message = cause instanceof Error ? cause.message : String(cause);
    super(`${what}: ${message} (${lines.join("; ")})`, { cause });
    this.lines = lines;
  }
}

/** Runs an engine call whose reason of failure is said in the log only, and puts those lines into the error. */
export async function withEngineLog<Result>(
  what: string,
  signal: AbortSignal,
  call: () => Promise<Result>,
): Promise<Result> {
  const before = lineCount;
  try {
    return await call();
  } catch (cause) {
    // that something is still held says more than that nobody wants it
    if (isModelSupervisorError(cause, "dispose_failed")) throw cause;
    if (signal.aborted) throw signal.reason;
    if (isModelSupervisorError(cause) || cause instanceof EngineLogError) throw cause;
    await new Promise((resolve) => setTimeout(resolve, LINES_ARRIVE_WITHIN_MS));
    const said = new Set(lines.filter(({ number, text }) => number >= before && text !== "").map(({ text }) => text));
    if (said.size === 0) throw cause;
    throw new EngineLogError(what, [...said], cause);
  }
}
