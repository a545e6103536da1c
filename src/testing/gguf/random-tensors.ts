/** Tensors of seeded random weights, cut from one pool of numbers: half a gigabyte is written at the disk's speed. */
import type { Tensor } from "./gguf-writer.js";
import { encodedBytes, encodeNumbers, formats, type NumberFormat } from "./number-formats.js";
import { bellShaped, seededRandom } from "./random.js";

const POOL_LENGTH = 1 << 16;

/** Makes a tensor whose values have the given standard deviation; each tensor starts elsewhere in the pool. */
export type RandomTensors = (
  name: string,
  dimensions: Tensor["dimensions"],
  format: NumberFormat,
  deviation: number,
) => Tensor;

export function randomTensors(seed: number): RandomTensors {
  const pool = bellShaped(POOL_LENGTH, seededRandom(seed));
  const encodedPools = new Map<string, Uint8Array>();
  let made = 0;

  const encodedPool = (format: NumberFormat, deviation: number): Uint8Array => {
    const key = `${format} ${deviation}`;
    const encoded =
      encodedPools.get(key) ??
      encodeNumbers(
        pool.map((value) => value * deviation),
        format,
      );
    encodedPools.set(key, encoded);
    return encoded;
  };

  return (name, dimensions, format, deviation) => {
    const index = ++made;
    return {
      name,
      dimensions,
      format,
      *data() {
        const block = encodedPool(format, deviation);
        const { blockBytes } = formats[format];
        let left = encodedBytes(dimensions[0], format) * (dimensions[1] ?? 1);
        let start = (index * 7919 * blockBytes) % block.length;
        while (left > 0) {
          const piece = block.subarray(start, start + left);
          yield piece;
          left -= piece.length;
          start = 0;
        }
      },
    };
  };
}

/** The same tensor with some rows set to zero. */
export function withZeroRows(tensor: Tensor, rows: Iterable<number>): Tensor {
  return {
    ...tensor,
    data() {
      const all = Buffer.concat([...tensor.data()]);
      const rowBytes = encodedBytes(tensor.dimensions[0], tensor.format);
      for (const row of rows) all.fill(0, row * rowBytes, (row + 1) * rowBytes);
      return [all];
    },
  };
}
