/** The GGUF v3 file format: header, metadata, tensor descriptions, aligned tensor data; one file or a split set. */
import { randomUUID } from "node:crypto";
import { open, rename, rm, type FileHandle } from "node:fs/promises";
import { encodedBytes, encodeNumbers, formats, type NumberFormat } from "./number-formats.js";

/** A metadata value, encoded with its type tag. Made by {@link u32}, {@link text} and their like. */
export type MetadataValue = Buffer;

/** Metadata in the order in which it is written. */
export type Metadata = Readonly<Record<string, MetadataValue>>;

/** A tensor to write. Its data is asked for when its turn comes, so a large file never lies in memory as a whole. */
export interface Tensor {
  readonly name: string;
  /** Length of a row first, then the number of rows: ggml's order. */
  readonly dimensions: readonly [number] | readonly [number, number];
  readonly format: NumberFormat;
  /** The encoded values, in pieces of any size. */
  readonly data: () => Iterable<Uint8Array>;
}

/** What a model consists of. */
export interface GgufContent {
  readonly metadata: Metadata;
  readonly tensors: readonly Tensor[];
}

/** The paths written, never none. The first is the one to load. */
export type WrittenFiles = [string, ...string[]];

/** How a model is laid out on disk; every maker takes these. */
export interface FileOptions {
  /**
   * Number of files to split the model into, named as llama.cpp does: `x-00001-of-00002.gguf`.
   * @defaultValue 1: one file of the name given
   */
  readonly parts?: number;
  /** Name of a tensor to leave out, for a file that looks right and does not load. */
  readonly omitTensor?: string;
}

const ALIGNMENT = 32;
const TYPE_TAGS = { u16: 2, u32: 4, i32: 5, f32: 6, bool: 7, text: 8, array: 9 };

const bytes = (length: number, write: (buffer: Buffer) => void): Buffer => {
  const buffer = Buffer.alloc(length);
  write(buffer);
  return buffer;
};
const plainU32 = (value: number): Buffer => bytes(4, (b) => b.writeUInt32LE(value));
const plainU64 = (value: number): Buffer => bytes(8, (b) => b.writeBigUInt64LE(BigInt(value)));
const plainText = (value: string): Buffer => Buffer.concat([plainU64(Buffer.byteLength(value)), Buffer.from(value)]);
const tagged = (tag: number, value: Buffer): MetadataValue => Buffer.concat([plainU32(tag), value]);
const array = (tag: number, values: readonly Buffer[]): MetadataValue =>
  tagged(TYPE_TAGS.array, Buffer.concat([plainU32(tag), plainU64(values.length), ...values]));
const plainI32 = (value: number): Buffer => bytes(4, (b) => b.writeInt32LE(value));
const plainF32 = (value: number): Buffer => bytes(4, (b) => b.writeFloatLE(value));

const u16 = (value: number): MetadataValue =>
  tagged(
    TYPE_TAGS.u16,
    bytes(2, (b) => b.writeUInt16LE(value)),
  );
export const u32 = (value: number): MetadataValue => tagged(TYPE_TAGS.u32, plainU32(value));
const i32 = (value: number): MetadataValue => tagged(TYPE_TAGS.i32, plainI32(value));
export const f32 = (value: number): MetadataValue => tagged(TYPE_TAGS.f32, plainF32(value));
export const bool = (value: boolean): MetadataValue => tagged(TYPE_TAGS.bool, Buffer.from([value ? 1 : 0]));
export const text = (value: string): MetadataValue => tagged(TYPE_TAGS.text, plainText(value));
export const texts = (values: readonly string[]): MetadataValue => array(TYPE_TAGS.text, values.map(plainText));
export const f32s = (values: readonly number[]): MetadataValue => array(TYPE_TAGS.f32, values.map(plainF32));
export const i32s = (values: readonly number[]): MetadataValue => array(TYPE_TAGS.i32, values.map(plainI32));

/** A tensor of values at hand. */
export function tensorOf(
  name: string,
  dimensions: Tensor["dimensions"],
  values: Float32Array,
  format: NumberFormat = "F32",
): Tensor {
  return { name, dimensions, format, data: () => [encodeNumbers(values, format)] };
}

/** A one-dimensional tensor of one repeated value: norms and biases. */
export function constantTensor(name: string, length: number, value: number): Tensor {
  return tensorOf(name, [length], new Float32Array(length).fill(value));
}

/**
 * Writes a model. Each file is written under a temporary name and renamed when it is complete, the one to load last:
 * who sees that one sees all of them whole.
 */
export async function writeGguf(file: string, content: GgufContent, options: FileOptions = {}): Promise<WrittenFiles> {
  const tensors = content.tensors.filter((tensor) => tensor.name !== options.omitTensor);
  if (options.omitTensor !== undefined && tensors.length === content.tensors.length) {
    throw new TypeError(`Option "omitTensor": the model has no tensor "${options.omitTensor}".`);
  }
  const parts = options.parts ?? 1;
  if (!Number.isInteger(parts) || parts < 1 || parts > tensors.length) {
    throw new TypeError(`Option "parts": expected an integer from 1 to ${tensors.length}, received ${parts}.`);
  }
  if (parts === 1) {
    await writeFile(file, { metadata: content.metadata, tensors });
    return [file];
  }
  const perPart = tensors.length / parts;
  const partName = (part: number): string =>
    `${file.replace(/\.gguf$/, "")}-${fiveDigits(part + 1)}-of-${fiveDigits(parts)}.gguf`;
  for (let part = parts - 1; part >= 0; part--) {
    const split = { "split.no": u16(part), "split.count": u16(parts), "split.tensors.count": i32(tensors.length) };
    await writeFile(partName(part), {
      metadata: part === 0 ? { ...content.metadata, ...split } : split,
      tensors: tensors.slice(Math.round(part * perPart), Math.round((part + 1) * perPart)),
    });
  }
  return [partName(0), ...Array.from({ length: parts - 1 }, (_, i) => partName(i + 1))];
}

async function writeFile(file: string, content: GgufContent): Promise<void> {
  const temporary = `${file}.${randomUUID()}.tmp`;
  try {
    const handle = await open(temporary, "wx");
    try {
      const header = encodeHeader(content);
      await writeAligned(handle, [header], header.length);
      for (const tensor of content.tensors) await writeAligned(handle, tensor.data(), tensorBytes(tensor), tensor.name);
    } finally {
      await handle.close();
    }
    await rename(temporary, file);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

function encodeHeader({ metadata, tensors }: GgufContent): Buffer {
  const entries = Object.entries(metadata);
  let offset = 0;
  const descriptions = tensors.map((tensor) => {
    const { name, dimensions, format } = tensor;
    const start = offset;
    offset = aligned(offset + tensorBytes(tensor));
    const shape = [plainU32(dimensions.length), ...dimensions.map(plainU64)];
    return Buffer.concat([plainText(name), ...shape, plainU32(formats[format].id), plainU64(start)]);
  });
  return Buffer.concat([
    Buffer.from("GGUF"),
    plainU32(3),
    plainU64(tensors.length),
    plainU64(entries.length),
    ...entries.flatMap(([key, value]) => [plainText(key), value]),
    ...descriptions,
  ]);
}

async function writeAligned(
  handle: FileHandle,
  pieces: Iterable<Uint8Array>,
  length: number,
  name = "header",
): Promise<void> {
  let written = 0;
  for (const piece of pieces) {
    // write() may stop early on a full pipe or disk; writeFile() on a handle goes on to the end or throws
    await handle.writeFile(piece);
    written += piece.length;
  }
  if (written !== length) throw new Error(`${name} gave ${written} bytes instead of ${length}.`);
  await handle.writeFile(Buffer.alloc(aligned(length) - length));
}

function tensorBytes({ dimensions: [rowLength, rows = 1], format }: Tensor): number {
  return encodedBytes(rowLength, format) * rows;
}

const aligned = (offset: number): number => Math.ceil(offset / ALIGNMENT) * ALIGNMENT;
const fiveDigits = (value: number): string => String(value).padStart(5, "0");
