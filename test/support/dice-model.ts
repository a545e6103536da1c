/** A model whose next token is drawn from known probabilities, whatever stands before it: for tests of sampling. */
import { writeGguf } from "../../src/testing/gguf/gguf-writer.js";
import { handSetLlama } from "../../src/testing/gguf/llama-layout.js";
import { Matrix } from "../../src/testing/gguf/matrix.js";
import { addRecitation } from "../../src/testing/gguf/recitation.js";
import { spmTokenizer, spmVocabulary } from "../../src/testing/gguf/vocabulary.js";

export interface DiceModel {
  readonly file: string;
  /** Token ids of the faces, by word. */
  readonly tokens: Readonly<Record<string, number>>;
  readonly vocabularySize: number;
  readonly endToken: number;
}

const LENGTH = 32;
/** Of the likeliest faces: above 0, so that a repeat penalty above 1 makes them less likely. */
const LOGIT = 5;
/** Of everything that is no face. Together they have a probability of about 1e-12. */
const IMPOSSIBLE = -30;

/** Writes a model that says the words of `faces` (three letters or more) with these probabilities, which sum up to 1. */
export async function makeDiceModel(file: string, faces: Readonly<Record<string, number>>): Promise<DiceModel> {
  const vocabulary = spmVocabulary();
  const tokens = Object.fromEntries(
    Object.keys(faces).map((word) => [word, addRecitation(vocabulary, ` ${word}`)[0] ?? Number.NaN]),
  );
  const embedding = new Matrix(vocabulary.size, LENGTH);
  const output = new Matrix(vocabulary.size, LENGTH);
  // All states are one vector, of which the last norm makes sqrt(LENGTH) in its first number.
  const setLogit = (token: number, logit: number) => output.set(token, 0, logit / Math.sqrt(LENGTH));
  for (let token = 0; token < vocabulary.size; token++) {
    embedding.set(token, 0, 1);
    setLogit(token, IMPOSSIBLE);
  }
  for (const [word, probability] of Object.entries(faces))
    setLogit(tokens[word] ?? Number.NaN, LOGIT + Math.log(probability));
  const tokenizer = spmTokenizer(vocabulary, false);
  await writeGguf(file, handSetLlama({ name: "dice", contextLength: 4096, tokenizer, embedding, output }), {});
  return { file, tokens, vocabularySize: vocabulary.size, endToken: vocabulary.id("</s>") };
}
