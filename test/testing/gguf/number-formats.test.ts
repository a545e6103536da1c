import { describe, expect, it } from "vitest";
import { encodedBytes, encodeNumbers, halfBits } from "../../../src/testing/gguf/number-formats.js";

/** The number that half-precision bits stand for, by the definition of the format. */
function halfValue(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const mantissa = bits & 0x3ff;
  if (exponent === 31) return mantissa === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25));
}

const scaleOf = (block: Uint8Array): number => halfValue((block[0] ?? 0) | ((block[1] ?? 0) << 8));
const wave = Float32Array.from({ length: 32 }, (_, i) => Math.sin(i) * 3);

describe("halfBits", () => {
  it.each([
    [1, 0x3c00],
    [-2, 0xc000],
    [0.1, 0x2e66],
    [1 / 3, 0x3555],
    [65504, 0x7bff],
    [65519, 0x7bff],
    [65520, 0x7c00],
    [-Infinity, 0xfc00],
    [2 ** -24, 0x0001],
    [2 ** -25, 0x0000],
    [2 ** -14, 0x0400],
  ])("encodes %d", (value, bits) => {
    expect(halfBits(value)).toBe(bits);
  });

  it("rounds a tie to the even neighbour", () => {
    expect(halfBits(1 + 2 ** -11)).toBe(0x3c00);
    expect(halfBits(1 + 3 * 2 ** -11)).toBe(0x3c02);
  });

  it("gives every half-precision number its own bits back", () => {
    const all = Array.from({ length: 0x10000 }, (_, bits) => bits).filter((bits) => !Number.isNaN(halfValue(bits)));

    expect(all.filter((bits) => halfBits(halfValue(bits)) !== bits)).toEqual([]);
  });

  it("keeps NaN", () => {
    expect(halfValue(halfBits(NaN))).toBeNaN();
  });
});

describe("encodeNumbers", () => {
  it("writes F32 little-endian", () => {
    expect([...encodeNumbers(Float32Array.of(1, -2), "F32")]).toEqual([0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
  });

  it("writes F16 little-endian", () => {
    expect([...encodeNumbers(Float32Array.of(1, 0.1), "F16")]).toEqual([0, 0x3c, 0x66, 0x2e]);
  });

  it("keeps Q8_0 values within half a step", () => {
    const block = encodeNumbers(wave, "Q8_0");

    const decoded = Array.from(new Int8Array(block.buffer, 2, 32), (step) => step * scaleOf(block));
    const worst = Math.max(...decoded.map((value, i) => Math.abs(value - (wave[i] ?? 0))));
    expect(block).toHaveLength(34);
    expect(worst).toBeLessThan(scaleOf(block) * 0.6);
  });

  it("keeps Q4_0 values within a step, first half of the block in the low nibbles", () => {
    const block = encodeNumbers(wave, "Q4_0");

    const nibbles = [...block.subarray(2)];
    const decoded = [...nibbles.map((n) => n & 15), ...nibbles.map((n) => n >> 4)].map(
      (step) => (step - 8) * scaleOf(block),
    );
    const worst = Math.max(...decoded.map((value, i) => Math.abs(value - (wave[i] ?? 0))));
    expect(block).toHaveLength(18);
    expect(worst).toBeLessThanOrEqual(Math.abs(scaleOf(block)) * 1.01);
  });

  it.each(["Q8_0", "Q4_0"] as const)("encodes a block of zeros in %s", (format) => {
    const block = encodeNumbers(new Float32Array(32), format);

    expect(Math.abs(scaleOf(block))).toBe(0);
  });
});

describe("encodedBytes", () => {
  it("refuses half a block", () => {
    expect(encodedBytes(64, "Q8_0")).toBe(68);
    expect(() => encodedBytes(48, "Q8_0")).toThrow(TypeError);
  });
});
