/** A table of 32-bit floats, row by row: what the hand-set models are put together from. */
import { tensorOf, type Tensor } from "./gguf-writer.js";
import type { NumberFormat } from "./number-formats.js";

/** In a weight matrix of ggml the row is the output and the column the input. */
export class Matrix {
  readonly rows: number;
  readonly columns: number;
  readonly values: Float32Array;

  constructor(rows: number, columns: number, values: Float32Array = new Float32Array(rows * columns)) {
    this.rows = rows;
    this.columns = columns;
    this.values = values;
  }

  get(row: number, column: number): number {
    return this.values[row * this.columns + column] ?? 0;
  }

  set(row: number, column: number, value: number): this {
    this.values[row * this.columns + column] = value;
    return this;
  }

  /** A view of one row: what is written into it is written into the matrix. */
  row(row: number): Float32Array {
    return this.values.subarray(row * this.columns, (row + 1) * this.columns);
  }

  toTensor(name: string, format: NumberFormat = "F32"): Tensor {
    return tensorOf(name, [this.columns, this.rows], this.values, format);
  }
}
