/** Low-rank approximation of a sparse matrix: what makes short vectors of long counts. */
import { Matrix } from "../../src/testing/gguf/matrix.js";
import { bellShaped, seededRandom } from "../../src/testing/gguf/random.js";

/** A matrix by its entries; what is not listed is zero. */
export interface SparseMatrix {
  readonly rows: number;
  readonly columns: number;
  readonly entries: readonly { readonly row: number; readonly column: number; readonly value: number }[];
}

/** `matrix[r][c]` is about the dot product of column `r` of `left` and column `c` of `right`; `rank` rows each. */
export interface Factors {
  /** Its rows are orthonormal. */
  readonly left: Matrix;
  readonly right: Matrix;
}

/** Randomized subspace iteration: random directions, turned towards the matrix's strongest by multiplying with it. */
export function factorize(matrix: SparseMatrix, rank: number): Factors {
  const rows = Int32Array.from(matrix.entries, (entry) => entry.row);
  const columns = Int32Array.from(matrix.entries, (entry) => entry.column);
  const values = Float32Array.from(matrix.entries, (entry) => entry.value);

  let right = new Matrix(rank, matrix.columns, bellShaped(rank * matrix.columns, seededRandom(1)));
  let left = new Matrix(rank, matrix.rows);
  for (let round = 0; round < 2; round++) {
    left = orthonormal(multiply(right, matrix.rows, columns, rows, values));
    right = multiply(left, matrix.columns, rows, columns, values);
  }
  return { left, right };
}

/** Multiplies each row of `vectors` with the matrix whose entries lead from `from` to `to`. */
function multiply(vectors: Matrix, length: number, from: Int32Array, to: Int32Array, values: Float32Array): Matrix {
  const products = new Matrix(vectors.rows, length);
  for (let i = 0; i < vectors.rows; i++) {
    const vector = vectors.row(i);
    const product = products.row(i);
    for (let entry = 0; entry < values.length; entry++) {
      const target = to[entry] ?? 0;
      product[target] = (product[target] ?? 0) + (values[entry] ?? 0) * (vector[from[entry] ?? 0] ?? 0);
    }
  }
  return products;
}

/** Gram-Schmidt, in place. A row that depends on those before it becomes zero. */
function orthonormal(vectors: Matrix): Matrix {
  for (let i = 0; i < vectors.rows; i++) {
    const vector = vectors.row(i);
    const lengthBefore = Math.sqrt(dot(vector, vector));
    for (let j = 0; j < i; j++) {
      const other = vectors.row(j);
      addScaled(vector, other, -dot(vector, other));
    }
    const length = Math.sqrt(dot(vector, vector));
    // what is left of a dependent row is rounding noise
    const scale = length > 1e-4 * lengthBefore ? 1 / length : 0;
    vector.forEach((value, k) => (vector[k] = value * scale));
  }
  return vectors;
}

function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] ?? 0) * (b[i] ?? 0);
  return sum;
}

function addScaled(target: Float32Array, source: Float32Array, scale: number): void {
  for (let i = 0; i < target.length; i++) target[i] = (target[i] ?? 0) + scale * (source[i] ?? 0);
}
