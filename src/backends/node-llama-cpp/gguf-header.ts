/**
 * Walks the header of a GGUF file and checks every length in it against the file's size. The engine's own parser must
 * not see an unchecked file: it reads zeros past the end without complaint, and loops on absurd counts.
 */
import type { FileHandle } from "node:fs/promises";

/** What the checks on a file, and on a set of split files, need to know. */
export interface GgufHeader {
  /** `general.architecture`. */
  readonly architecture: string | undefined;
  /** `split.count`; 0 or 1 for a file that is not part of a set. */
  readonly splitCount: number;
  readonly tensorCount: number;
  /** Where the tensors' data begins. */
  readonly dataOffset: number;
  /** Lengths of the arrays in the metadata, by key. */
  readonly arrayLengths: ReadonlyMap<string, number>;
}

/** Something in the file contradicts the format or the file's size; the message says what. */
export class GgufFormatError extends Error {}

/** Bytes of one value, by GGUF value type; strings (8) and arrays (9) are walked. */
const VALUE_BYTES = [1, 1, 2, 2, 4, 4, 4, 1, undefined, undefined, 8, 8, 8];
const STRING = 8;
const ARRAY = 9;
const DEFAULT_ALIGNMENT = 32;
const MAX_DIMENSIONS = 4;
/** Far more than any vocabulary; what is longer is damaged, and the library would read all of it into memory. */
const MAX_ELEMENTS = 2 ** 22;
const MAX_STRING_BYTES = 2 ** 24;
const CHUNK_BYTES = 1 << 20;

/** [bytes, elements] of one block, by ggml type. A type that is missing here has its size checked by the engine alone. */
const BLOCKS = new Map<number, readonly [number, number]>([
  [0, [4, 1]],
  [1, [2, 1]],
  [2, [18, 32]],
  [3, [20, 32]],
  [6, [22, 32]],
  [7, [24, 32]],
  [8, [34, 32]],
  [9, [36, 32]],
  [10, [84, 256]],
  [11, [110, 256]],
  [12, [144, 256]],
  [13, [176, 256]],
  [14, [210, 256]],
  [15, [292, 256]],
  [16, [66, 256]],
  [17, [74, 256]],
  [18, [98, 256]],
  [19, [50, 256]],
  [20, [18, 32]],
  [21, [110, 256]],
  [22, [82, 256]],
  [23, [136, 256]],
  [24, [1, 1]],
  [25, [2, 1]],
  [26, [4, 1]],
  [27, [8, 1]],
  [28, [8, 1]],
  [29, [56, 256]],
  [30, [2, 1]],
  [34, [54, 256]],
  [35, [66, 256]],
  [39, [17, 32]],
]);

/** Reads and checks the header of an open file of `size` bytes. @throws GgufFormatError, or the signal's reason. */
export async function readGgufHeader(file: FileHandle, size: number, signal: AbortSignal): Promise<GgufHeader> {
  const reader = new BoundedReader(file, size, signal);
  if (size === 0) throw new GgufFormatError("it is empty");
  await checkMagic(reader, size);
  const tensorCount = await reader.count("number of tensors", 24);
  const valueCount = await reader.count("number of metadata values", 13);

  const values = new Map<string, string | number>();
  const arrayLengths = new Map<string, number>();
  for (let index = 0; index < valueCount; index++) {
    const key = await reader.string(`name of metadata value ${index + 1} of ${valueCount}`);
    if (!isName(key)) throw new GgufFormatError(`metadata value ${index + 1} of ${valueCount} has no proper name`);
    const type = await reader.u32(`type of "${key}"`);
    if (type === ARRAY) arrayLengths.set(key, await skipArray(reader, key, 0));
    else {
      const value = await readValue(reader, type, key);
      if (value !== undefined) values.set(key, value);
    }
  }

  const infos = [];
  for (let index = 0; index < tensorCount; index++)
    infos.push(await readTensorInfo(reader, `tensor ${index + 1} of ${tensorCount}`));
  const alignment = numberOf(values.get("general.alignment")) || DEFAULT_ALIGNMENT;
  const dataOffset = Math.ceil(reader.offset / alignment) * alignment;
  if (infos.length > 0 && dataOffset > size) throw new GgufFormatError(`it ends inside the header, at ${size} bytes`);

  for (const { name, dimensions, type, offset } of infos) {
    const endOffset = dataOffset + offset + tensorBytes(type, dimensions);
    if (endOffset <= size) continue;
    throw new GgufFormatError(
      `it is cut off: the data of tensor "${name}" ends at byte ${endOffset}, the file has ${size}`,
    );
  }
  const architecture = values.get("general.architecture");
  return {
    architecture: typeof architecture === "string" ? architecture : undefined,
    splitCount: numberOf(values.get("split.count")),
    tensorCount,
    dataOffset,
    arrayLengths,
  };
}

/** Native strings end at a NUL; what they call nothing must have a name. */
function isName(text: string): boolean {
  return text !== "" && !text.includes("\0");
}

async function checkMagic(reader: BoundedReader, size: number): Promise<void> {
  const start = (await reader.bytes(Math.min(4, size), "magic number")).toString("latin1");
  if (start !== "GGUF") {
    const looks = /^\s*</.test(start) ? "; it looks like a web page (an error page saved as a model?)" : "";
    throw new GgufFormatError(`it does not start with "GGUF"${looks}`);
  }
  const version = await reader.u32("version");
  if (version === 2 || version === 3) return;
  throw new GgufFormatError(`GGUF version ${version} is not known; versions 2 and 3 are`);
}

/** A string or a number; `undefined` for all else, which is skipped. */
async function readValue(reader: BoundedReader, type: number, key: string): Promise<string | number | undefined> {
  const what = `value of "${key}"`;
  if (type === STRING) return reader.string(what);
  const bytes = VALUE_BYTES[type];
  if (bytes === undefined) throw new GgufFormatError(`"${key}" has the unknown type ${type}`);
  const value = await reader.bytes(bytes, what);
  const isUnsigned = type === 0 || type === 2 || type === 4;
  if (isUnsigned) return value.readUIntLE(0, bytes);
  return type === 10 ? Number(value.readBigUInt64LE()) : undefined;
}

/** Returns how many elements there are. */
async function skipArray(reader: BoundedReader, key: string, depth: number): Promise<number> {
  const type = await reader.u32(`type of the array "${key}"`);
  const bytes = VALUE_BYTES[type];
  const count = await reader.count(`length of the array "${key}"`, bytes ?? 8);
  if (count > MAX_ELEMENTS)
    throw new GgufFormatError(`the array "${key}" has ${count} elements, more than any model needs`);
  if (bytes !== undefined) {
    reader.skip(bytes * count, `array "${key}"`);
    return count;
  }
  if ((type !== STRING && type !== ARRAY) || depth > 3)
    throw new GgufFormatError(`the array "${key}" has the unknown type ${type}`);
  if (type === STRING) await reader.skipStrings(count, `array "${key}"`);
  else for (let index = 0; index < count; index++) await skipArray(reader, key, depth + 1);
  return count;
}

async function readTensorInfo(reader: BoundedReader, what: string) {
  const name = await reader.string(`name of ${what}`);
  if (!isName(name)) throw new GgufFormatError(`${what} has no proper name`);
  const dimensionCount = await reader.u32(`dimensions of tensor "${name}"`);
  if (dimensionCount > MAX_DIMENSIONS) throw new GgufFormatError(`tensor "${name}" has ${dimensionCount} dimensions`);
  const dimensions: number[] = [];
  for (let index = 0; index < dimensionCount; index++)
    dimensions.push(await reader.u64(`dimensions of tensor "${name}"`));
  const type = await reader.u32(`type of tensor "${name}"`);
  return { name, dimensions, type, offset: await reader.u64(`offset of tensor "${name}"`) };
}

function tensorBytes(type: number, dimensions: readonly number[]): number {
  const [bytes, elements] = BLOCKS.get(type) ?? [0, 1];
  return Math.ceil(dimensions.reduce((product, length) => product * length, 1) / elements) * bytes;
}

function numberOf(value: string | number | undefined): number {
  return typeof value === "number" ? value : 0;
}

/** Reads forward through a file, a chunk at a time; a read past its end is a format error that says what was read. */
class BoundedReader {
  offset = 0;
  readonly #file: FileHandle;
  readonly #size: number;
  readonly #signal: AbortSignal;
  #chunk: Buffer = Buffer.alloc(0);
  #chunkOffset = 0;

  constructor(file: FileHandle, size: number, signal: AbortSignal) {
    this.#file = file;
    this.#size = size;
    this.#signal = signal;
  }

  async bytes(length: number, what: string): Promise<Buffer> {
    this.#need(length, what);
    let start = this.offset - this.#chunkOffset;
    if (start < 0 || start + length > this.#chunk.length) {
      this.#signal.throwIfAborted();
      const buffer = Buffer.alloc(Math.min(Math.max(length, CHUNK_BYTES), this.#size - this.offset));
      const { bytesRead } = await this.#file.read(buffer, 0, buffer.length, this.offset);
      if (bytesRead < length) throw new GgufFormatError(`it was cut while it was read: ${what} is missing`);
      this.#chunk = buffer.subarray(0, bytesRead);
      this.#chunkOffset = this.offset;
      start = 0;
    }
    this.offset += length;
    return this.#chunk.subarray(start, start + length);
  }

  async u32(what: string): Promise<number> {
    return (await this.bytes(4, what)).readUInt32LE();
  }

  async u64(what: string): Promise<number> {
    return Number((await this.bytes(8, what)).readBigUInt64LE());
  }

  /** A number of things of at least `leastBytes` each, which must fit into what is left of the file. */
  async count(what: string, leastBytes: number): Promise<number> {
    const count = await this.u64(what);
    if (count * leastBytes <= this.#size - this.offset) return count;
    throw new GgufFormatError(`the ${what} is ${count}, more than the file of ${this.#size} bytes can hold`);
  }

  async string(what: string): Promise<string> {
    const length = this.#stringLength(await this.count(`length of the ${what}`, 1), what);
    return (await this.bytes(length, what)).toString("utf8");
  }

  /** Vocabularies have hundreds of thousands of strings: those that lie in the chunk at hand are skipped without a turn. */
  async skipStrings(count: number, what: string): Promise<void> {
    for (let index = 0; index < count; index++) {
      const start = this.offset - this.#chunkOffset;
      if (start >= 0 && start + 8 <= this.#chunk.length) {
        this.offset += 8;
        this.skip(this.#stringLength(Number(this.#chunk.readBigUInt64LE(start)), what), what);
      } else {
        this.skip(this.#stringLength(await this.u64(what), what), what);
      }
    }
  }

  #stringLength(length: number, what: string): number {
    if (length <= MAX_STRING_BYTES) return length;
    throw new GgufFormatError(`the ${what} has a text of ${length} bytes, more than any model needs`);
  }

  skip(length: number, what: string): void {
    this.#need(length, what);
    this.offset += length;
  }

  #need(length: number, what: string): void {
    if (this.offset + length <= this.#size) return;
    throw new GgufFormatError(
      `it ends inside the header: ${what} would end at byte ${this.offset + length}, the file has ${this.#size}`,
    );
  }
}
