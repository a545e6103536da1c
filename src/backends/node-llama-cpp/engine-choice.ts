/** Which kind of GPU the engine is to use; `"auto"`: the best one that works, else the CPU. */
export type GpuChoice = "auto" | "metal" | "cuda" | "vulkan" | false;

/**
 * Where the engine's native library comes from. `"never"`: a local build if there is one, else the prebuilt library;
 * nothing is compiled. `"auto"`: the same, and compiled where there is neither. `"try"`: a local build, compiled if there is
 * none, else the prebuilt library. `"forceRebuild"`: compiled anew. Compiling takes minutes, a compiler and CMake.
 */
export type BuildChoice = "never" | "auto" | "try" | "forceRebuild";
