/** A model whose tokens are single bytes, under any of llama.cpp's ways to cut a text before BPE; it says nothing. */
import { writeGguf, text, texts, i32s, u32 } from "../../src/testing/gguf/gguf-writer.js";
import { handSetLlama } from "../../src/testing/gguf/llama-layout.js";
import { Matrix } from "../../src/testing/gguf/matrix.js";

const END = "<|endoftext|>";
const LENGTH = 32;

/** How GPT-2 writes a byte: as itself where that can be seen, else as a letter from U+0100 on. */
function byteLetters(): string[] {
  const isSeen = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let unseen = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isSeen(byte) ? byte : 256 + unseen++));
}

/** `pre`: the value of `tokenizer.ggml.pre`. */
export async function makeByteModel(file: string, pre: string): Promise<string> {
  const tokens = [...byteLetters(), END];
  const end = tokens.indexOf(END);
  const embedding = new Matrix(tokens.length, LENGTH);
  const output = new Matrix(tokens.length, LENGTH);
  for (let token = 0; token < tokens.length; token++) embedding.set(token, 0, 1);
  output.set(end, 0, 1);
  const tokenizer = {
    "tokenizer.ggml.model": text("gpt2"),
    "tokenizer.ggml.pre": text(pre),
    "tokenizer.ggml.tokens": texts(tokens),
    "tokenizer.ggml.token_type": i32s(tokens.map((token) => (token === END ? 3 : 1))),
    "tokenizer.ggml.merges": texts(["z z"]),
    "tokenizer.ggml.eos_token_id": u32(end),
    "tokenizer.ggml.bos_token_id": u32(end),
  };
  await writeGguf(file, handSetLlama({ name: "bytes", contextLength: 4096, tokenizer, embedding, output }), {});
  return file;
}
