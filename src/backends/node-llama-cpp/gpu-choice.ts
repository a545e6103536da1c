/** Which kind of GPU the engine is to use; `"auto"`: the best one that works, else the CPU. */
export type GpuChoice = "auto" | "metal" | "cuda" | "vulkan" | false;
