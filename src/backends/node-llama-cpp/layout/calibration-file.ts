/** Remembers what was measured, by model file, engine and machine, so that only the first load of a model measures. */
import { createHash } from "node:crypto";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { z } from "zod";
import type { Calibration } from "./layout.js";

const VERSION = 1;
/** The oldest are forgotten. */
const MOST_ENTRIES = 500;

const spread = z.object({ contexts: z.int().min(1).max(256), threads: z.int().min(1).max(1024) });
const calibration = z.object({
  spread,
  steps: z.array(z.object({ width: z.int().min(1).max(256), ms: z.number().positive() })),
  measurements: z.array(
    z.object({
      contexts: z.number(),
      threadsPerContext: z.number(),
      singleTokensPerSecond: z.number(),
      fullTokensPerSecond: z.number(),
    }),
  ),
});
const contents = z.object({ version: z.literal(VERSION), entries: z.record(z.string(), calibration) });

/** What a measurement holds for. */
export interface CalibrationKey {
  readonly file: { readonly sizeBytes: number; readonly modifiedMs: number; readonly name: string };
  readonly engine: string;
  readonly options: Readonly<Record<string, unknown>>;
}

export class CalibrationFile {
  readonly #path: string;

  constructor(file: string) {
    this.#path = file;
  }

  async recall(key: CalibrationKey): Promise<Calibration | undefined> {
    return (await this.#read())[hashOf(key)];
  }

  /** What cannot be written is measured again next time: a full or read-only disk is no reason not to serve the model. */
  async remember(key: CalibrationKey, found: Calibration): Promise<void> {
    const entries = Object.entries({ ...(await this.#read()), [hashOf(key)]: found }).slice(-MOST_ENTRIES);
    const temporary = `${this.#path}.${process.pid}`;
    try {
      await mkdir(path.dirname(this.#path), { recursive: true });
      await writeFile(temporary, JSON.stringify({ version: VERSION, entries: Object.fromEntries(entries) }));
      await rename(temporary, this.#path);
    } catch {
      // nor is a rest that cannot be removed
      await rm(temporary, { force: true }).catch(() => undefined);
    }
  }

  /** A file that is missing, damaged or of another version holds nothing. */
  async #read(): Promise<Record<string, Calibration>> {
    try {
      return contents.parse(JSON.parse(await readFile(this.#path, "utf8"))).entries;
    } catch {
      return {};
    }
  }
}

/** In the user's cache folder. */
export function defaultCalibrationPath(): string {
  const cache = process.env["XDG_CACHE_HOME"] ?? path.join(os.homedir(), ".cache");
  return path.join(cache, "model-supervisor", "calibrations.json");
}

function hashOf(key: CalibrationKey): string {
  const [cpu] = os.cpus();
  const machine = { cpu: cpu?.model, cpus: os.availableParallelism(), arch: os.arch() };
  return createHash("sha256")
    .update(JSON.stringify({ machine, ...key }))
    .digest("hex");
}
