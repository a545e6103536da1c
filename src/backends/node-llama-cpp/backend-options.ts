/** Checks what the backend is made with. */
import { z } from "zod";
import { check } from "../option-check.js";

const GPU = '"auto", "metal", "cuda", "vulkan" or false';
const BUILD = '"never", "auto", "try" or "forceRebuild"';
const FOLDER = "the path of a folder";
const FILE = "the path of a file, or false";

const backendOptions = z.strictObject(
  {
    gpu: z.union([z.enum(["auto", "metal", "cuda", "vulkan"]), z.literal(false)], { error: GPU }).optional(),
    build: z.enum(["never", "auto", "try", "forceRebuild"], { error: BUILD }).optional(),
    calibrationFile: z.union([z.string().min(1, { error: FILE }), z.literal(false)], { error: FILE }).optional(),
    modelsDir: z.string({ error: FOLDER }).min(1, { error: FOLDER }).optional(),
  },
  { error: "an object" },
);

/** @throws InvalidOptionError */
export function checkBackendOptions(options: unknown) {
  return check(backendOptions, options, "options");
}
