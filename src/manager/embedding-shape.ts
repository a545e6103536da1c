import { InvalidOptionError } from "../errors.js";
import type { EmbedOptions } from "../inference.js";

/** Cuts and scales a vector as the caller wants it. Throws `invalid_option` where it has not as many numbers as are asked for. */
export function shapeEmbedding(
  vector: readonly number[],
  { dimensions = vector.length, normalize = true }: EmbedOptions,
): number[] {
  if (dimensions > vector.length) {
    throw new InvalidOptionError("dimensions", `at most ${vector.length}, which is what this model gives`, dimensions);
  }
  const cut = vector.slice(0, dimensions);
  if (!normalize) return cut;
  const length = Math.hypot(...cut);
  if (!(length > 0 && Number.isFinite(length))) throw new Error("the engine gave a vector without a direction");
  return cut.map((value) => value / length);
}
