/** What the tests of sources share: a hub of their own, and folders that are gone afterwards. */
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { onTestFinished } from "vitest";
import { localFile, type Wish } from "../../../../src/backends/node-llama-cpp/sources/local-files.js";
import type { SourceSettings } from "../../../../src/backends/node-llama-cpp/sources/settings.js";
import { HubServer, type HubOptions } from "../../../support/hub-server.js";

export const never = new AbortController().signal;
/** What must never be shown. */
export const TOKEN = "hf_secretTokenOfTheTest";

export interface Place {
  readonly hub: HubServer;
  readonly folder: string;
  readonly settings: SourceSettings;
  readonly modelsDir: string;
  find(source: string, wish?: Partial<Wish>): Promise<string>;
  /** Files below the folder of models, but for what is noted beside them. */
  files(): Promise<string[]>;
}

export async function temporaryFolder(): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), "sources-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

export async function startPlace(
  options: HubOptions & {
    readonly stallMs?: number;
    readonly standstillMs?: number;
    readonly headerBytes?: number;
    readonly hasToken?: boolean;
  } = {},
): Promise<Place> {
  const hub = await HubServer.start(options);
  const folder = await temporaryFolder();
  const modelsDir = path.join(folder, "models");
  const settings: SourceSettings = {
    modelsDir,
    libraryDirs: [modelsDir, path.join(folder, "library")],
    hubCaches: [modelsDir, path.join(folder, "hub")],
    llamaCaches: [path.join(folder, "llama")],
    endpoint: new URL(hub.endpoint),
    limits: {
      stallMs: options.stallMs ?? 10_000,
      standstillMs: options.standstillMs ?? 20_000,
      retryMs: 1,
      headerBytes: options.headerBytes ?? 1000,
    },
    token: async () => (options.hasToken ? TOKEN : undefined),
  };
  return {
    hub,
    folder,
    settings,
    modelsDir,
    find: (source, wish) => localFile(source, settings, { headersIn: undefined, signal: never, ...wish }),
    files: async () => {
      const all = await readdir(modelsDir, { recursive: true }).catch(() => []);
      return all.filter((file) => file.endsWith(".gguf") && !file.startsWith(".incomplete")).toSorted();
    },
  };
}

export async function write(...segments: readonly string[]): Promise<string> {
  const file = path.join(...segments);
  await mkdir(path.dirname(file), { recursive: true });
  await writeFile(file, `the bytes of ${path.basename(file)}`);
  return file;
}

/** Bytes that say where they are, so that one that is out of place is noticed. */
export function bytes(mebibytes: number, seed = 1): Buffer {
  const words = new Uint32Array((mebibytes * 1024 ** 2) / 4);
  for (let index = 0; index < words.length; index++) words[index] = Math.imul(index + seed, 2_654_435_761);
  return Buffer.from(words.buffer);
}

/** What the promise rejects with; a test that waits for a failure must not pass on success. */
export async function failureOf(promise: Promise<unknown>): Promise<Error> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof Error) return error;
    throw new TypeError("It did not reject with an error", { cause: error });
  }
  throw new TypeError("It did not reject");
}
