/** The files that the benchmarks run on, made at first use in the cache folder. */
import { access, mkdir } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { makeEmbeddingModel, makeRandomModel } from "../../src/testing/index.js";
import type { WrittenFiles } from "../../src/testing/index.js";

/** Where the benchmarks keep what is made once. */
export const CACHE = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", "..", ".cache", "bench");

const makers = {
  "tiny-f32": (file: string) => makeRandomModel(file, { preset: "tiny" }),
  "small-f16": (file: string) => makeRandomModel(file, { preset: "small" }),
  // another file of the same size: two ids on one file share its weights
  "small-f16-other": (file: string) => makeRandomModel(file, { preset: "small", seed: 2 }),
  "small-q4_0": (file: string) => makeRandomModel(file, { preset: "small", format: "Q4_0" }),
  "large-f16": (file: string) => makeRandomModel(file, { preset: "large" }),
  "embed-tiny": (file: string) => makeEmbeddingModel(file),
  "embed-small": (file: string) => makeEmbeddingModel(file, { preset: "small" }),
} satisfies Record<string, (file: string) => Promise<WrittenFiles>>;

export type BenchModel = keyof typeof makers;

export async function benchModel(name: BenchModel): Promise<string> {
  const file = path.join(CACHE, `${name}.gguf`);
  await mkdir(CACHE, { recursive: true });
  const exists = await access(file).then(
    () => true,
    () => false,
  );
  if (!exists) await makers[name](file);
  return file;
}
