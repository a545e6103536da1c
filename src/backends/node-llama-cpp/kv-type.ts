import type { GgmlType } from "node-llama-cpp";
import type { EngineOptions } from "../backend.js";

/** The names of the KV cache's types in the engine. */
const KV_TYPES = { f16: "F16", q8_0: "Q8_0", q4_0: "Q4_0" } as const;

/** `undefined`: the engine's own choice. */
export async function kvTypeOf(options: EngineOptions): Promise<GgmlType | undefined> {
  if (options.kvCacheType === undefined) return undefined;
  const library = await import("node-llama-cpp");
  return library.GgmlType[KV_TYPES[options.kvCacheType]];
}
