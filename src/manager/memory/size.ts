import type { Size } from "../../model.js";

const UNIT_BYTES: Readonly<Record<string, number>> = {
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  KiB: 1024,
  MiB: 1024 ** 2,
  GiB: 1024 ** 3,
};

/** Bytes of a {@link Size}; `undefined` if it is none (negative, not finite, unknown unit). Fractions are cut. */
export function parseSize(size: unknown): number | undefined {
  if (typeof size === "number") return Number.isFinite(size) && size >= 0 ? Math.floor(size) : undefined;
  if (typeof size !== "string") return undefined;
  const match = /^(\d+(?:\.\d+)?)\s*(KB|MB|GB|KiB|MiB|GiB)$/.exec(size);
  const factor = UNIT_BYTES[match?.[2] ?? ""];
  return factor === undefined ? undefined : Math.floor(Number(match?.[1]) * factor);
}

/** True for everything that {@link parseSize} understands. */
export function isSize(value: unknown): value is Size {
  return parseSize(value) !== undefined;
}
