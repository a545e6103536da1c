/** Tells from the engine's words whether a load failed for want of memory: then another model may make room for it. */
import { EngineLogError } from "./engine.js";

/** Lines of llama.cpp and its backends about an allocation or a mapping that the system refused. */
const OUT_OF_MEMORY =
  /insufficient memory|out of (device |host )?memory|cannot allocate memory|bad_alloc|(failed|unable) to allocate|OutOf(Device|Host)Memory/i;

/** Looks through the causes as well. */
export async function isOutOfMemory(error: unknown): Promise<boolean> {
  // the library's own, of its look at what is free before it creates a context; it has been loaded by now
  const { InsufficientMemoryError } = await import("node-llama-cpp");
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof InsufficientMemoryError) return true;
    const words = cause instanceof EngineLogError ? cause.lines : [cause.message];
    if (words.some((line) => OUT_OF_MEMORY.test(line))) return true;
  }
  return false;
}
