/** How numbers lie in a GGUF file: the four ggml formats that the maker writes, and their encoders. */

/** A ggml number format: plain 32-bit or 16-bit floats, or blocks of 32 values that share a scale. */
export type NumberFormat = "F32" | "F16" | "Q8_0" | "Q4_0";

/** What the file format needs to know of a number format. */
export interface FormatFacts {
  /** ggml's number for the format, in a tensor's description. */
  readonly id: number;
  /** llama.cpp's number for a file that is mostly in this format (`general.file_type`). */
  readonly fileType: number;
  /** Values per block; a row must be a whole number of blocks. */
  readonly blockLength: number;
  readonly blockBytes: number;
}

export const formats: Readonly<Record<NumberFormat, FormatFacts>> = {
  F32: { id: 0, fileType: 0, blockLength: 1, blockBytes: 4 },
  F16: { id: 1, fileType: 1, blockLength: 1, blockBytes: 2 },
  Q4_0: { id: 2, fileType: 2, blockLength: 32, blockBytes: 18 },
  Q8_0: { id: 8, fileType: 7, blockLength: 32, blockBytes: 34 },
};

/** Bytes that `count` values take; `count` must be a whole number of blocks. */
export function encodedBytes(count: number, format: NumberFormat): number {
  const { blockLength, blockBytes } = formats[format];
  if (count % blockLength !== 0)
    throw new TypeError(`${format} needs a multiple of ${blockLength} values per row, not ${count}.`);
  return (count / blockLength) * blockBytes;
}

/** The values in a number format, little-endian as GGUF wants it (every platform of Node but s390x is). */
export function encodeNumbers(values: Float32Array, format: NumberFormat): Uint8Array {
  if (format === "F32") return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  if (format === "F16") return new Uint8Array(Uint16Array.from(values, halfBits).buffer);

  const { blockLength, blockBytes } = formats[format];
  const out = new Uint8Array(encodedBytes(values.length, format));
  const encodeBlock = format === "Q8_0" ? encodeQ8Block : encodeQ4Block;
  for (let block = 0; block * blockLength < values.length; block++) {
    const from = values.subarray(block * blockLength, (block + 1) * blockLength);
    encodeBlock(from, out.subarray(block * blockBytes, (block + 1) * blockBytes));
  }
  return out;
}

const oneFloat = new Float32Array(1);
const itsBits = new Uint32Array(oneFloat.buffer);

/** The bits of the nearest IEEE half-precision number, ties to even. */
export function halfBits(value: number): number {
  oneFloat[0] = value;
  const bits = itsBits[0] ?? 0;
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00; // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00; // 65520 and above round to infinity
  if (magnitude < 0x38800000) return sign | roundToEven(Math.abs(value) * 2 ** 24); // subnormal: a count of 2^-24
  // From here exponent and mantissa can be rounded as one number: a carry out of the mantissa is the next exponent.
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - 0x38000000) >>> 13);
}

function roundToEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}

function writeScale(scale: number, block: Uint8Array): void {
  const bits = halfBits(scale);
  block[0] = bits & 0xff;
  block[1] = bits >>> 8;
}

/** Scale = largest magnitude / 127, then one signed byte per value. */
function encodeQ8Block(values: Float32Array, block: Uint8Array): void {
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const scale = largest / 127;
  writeScale(scale, block);
  values.forEach((value, i) => {
    block[2 + i] = scale === 0 ? 0 : Math.round(value / scale) & 0xff;
  });
}

/** Scale = the value of largest magnitude / -8, so that it becomes 0 of 0…15 exactly; low nibbles first half, high second. */
function encodeQ4Block(values: Float32Array, block: Uint8Array): void {
  const extreme = values.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
  const scale = extreme / -8;
  writeScale(scale, block);
  const half = values.length / 2;
  const nibble = (value: number): number => (scale === 0 ? 8 : Math.min(15, Math.floor(value / scale + 8.5)));
  values.subarray(0, half).forEach((value, i) => {
    block[2 + i] = nibble(value) | (nibble(values[half + i] ?? 0) << 4);
  });
}
