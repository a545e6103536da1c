/** A model that says one text, whatever it is asked. */
import { writeGguf, type FileOptions, type WrittenFiles } from "./gguf-writer.js";
import { handSetLlama } from "./llama-layout.js";
import { Matrix } from "./matrix.js";
import { refuseUnknownOptions, requireInteger, requireText } from "./options.js";
import { bellShaped, seededRandom } from "./random.js";
import { addRecitation } from "./recitation.js";
import { spmTokenizer, spmVocabulary } from "./vocabulary.js";

/** Options of {@link makeRecitingModel}. */
export interface RecitingModelOptions extends FileOptions {
  /**
   * What the model says: any text, with punctuation, line breaks, JSON, any script, and as many repetitions as you like.
   * A word is one token where it stands first (with the space before it); everything else is one token per byte.
   */
  readonly text: string;
  /** Tokens that the model claims to be trained for. @defaultValue 4096 */
  readonly contextLength?: number;
  /** Chat template (Jinja) of the file. @defaultValue that of ChatML */
  readonly chatTemplate?: string;
}

const EMBEDDING_LENGTH = 128;

/**
 * Writes a generative model that recites a text exactly and then ends, as a completion of any prompt (an empty one too)
 * and as a ChatML chat. For tests of exact text, streaming, stop sequences, tool calls and finish reasons.
 *
 * The next token depends on the last one alone: a foreign KV cache goes unnoticed. Take `makeRecallModel` to tell.
 *
 * @throws TypeError naming the option that is wrong.
 */
export async function makeRecitingModel(file: string, options: RecitingModelOptions): Promise<WrittenFiles> {
  refuseUnknownOptions(options, ["text", "contextLength", "chatTemplate"]);
  const { text, contextLength = 4096, chatTemplate } = options;
  requireText("text", text);
  requireInteger("contextLength", contextLength);

  const vocabulary = spmVocabulary();
  const promptTokens = vocabulary.size;
  const chain = addRecitation(vocabulary, text);
  const end = vocabulary.id("</s>");

  // All tokens that a prompt can hold look the same: "begin". Each token of the text has a direction of its own, and the
  // token that follows it has that direction as its output row. No layer adds anything in between.
  const embedding = new Matrix(vocabulary.size, EMBEDDING_LENGTH);
  const output = new Matrix(vocabulary.size, EMBEDDING_LENGTH);
  const random = seededRandom(1);
  const begin = bellShaped(EMBEDDING_LENGTH, random);
  for (let token = 0; token < promptTokens; token++) embedding.row(token).set(begin);
  let before = begin;
  for (const token of chain) {
    output.row(token).set(before);
    before = bellShaped(EMBEDDING_LENGTH, random);
    embedding.row(token).set(before);
  }
  output.row(end).set(before);

  // without a space prefix nothing is taken away from the front of the text either
  const tokenizer = spmTokenizer(vocabulary, false, chatTemplate);
  return writeGguf(file, handSetLlama({ name: "reciting", contextLength, tokenizer, embedding, output }), options);
}
