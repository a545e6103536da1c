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
  const bytes = typeof size === "string" ? bytesOfText(size) : size;
  return typeof bytes === "number" && Number.isFinite(bytes) && bytes >= 0 ? Math.floor(bytes) : undefined;
}

function bytesOfText(text: string): number {
  const [, value, unit = ""] = /^(\d+(?:\.\d+)?)\s*(KB|MB|GB|KiB|MiB|GiB)$/.exec(text) ?? [];
  return Number(value) * (UNIT_BYTES[unit] ?? Number.NaN);
}

/** True for everything that {@link parseSize} understands. */
export function isSize(value: unknown): value is Size {
  return parseSize(value) !== undefined;
}
