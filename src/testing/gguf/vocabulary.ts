/** Vocabularies for three tokenizers of llama.cpp: SPM (llama), WPM (bert) and UGM (t5). */
import { bool, f32s, i32s, text, texts, u32, type Metadata } from "./gguf-writer.js";

/** llama.cpp's kinds of token. A byte token renders as one byte; a control token renders as nothing. */
const tokenTypes = { normal: 1, unknown: 2, control: 3, byte: 6 };
export type TokenType = keyof typeof tokenTypes;

/** What a space looks like inside a token. */
export const SPACE = "\u2581";

const CHAT_START = "<|im_start|>";
const CHAT_END = "<|im_end|>";
const CHAT_TEMPLATE =
  `{% for message in messages %}{{ '${CHAT_START}' + message['role'] + '\\n' + message['content'] + '${CHAT_END}\\n' }}{% endfor %}` +
  `{% if add_generation_prompt %}{{ '${CHAT_START}assistant\\n' }}{% endif %}`;

/** Tokens by id. Each text is there once: llama.cpp ends the process when it finds one twice. */
export class Vocabulary {
  readonly tokens: string[] = [];
  readonly types: TokenType[] = [];
  readonly #scores: number[] = [];
  readonly #ids = new Map<string, number>();

  get size(): number {
    return this.tokens.length;
  }

  /** Adds a token unless its text is there; returns its id. */
  add(token: string, type: TokenType = "normal", score = 0): number {
    const known = this.#ids.get(token);
    if (known !== undefined) return known;
    const id = this.tokens.length;
    this.#ids.set(token, id);
    this.tokens.push(token);
    this.types.push(type);
    this.#scores.push(score);
    return id;
  }

  has(token: string): boolean {
    return this.#ids.has(token);
  }

  id(token: string): number {
    const id = this.#ids.get(token);
    if (id === undefined) throw new Error(`The vocabulary has no token ${JSON.stringify(token)}.`);
    return id;
  }

  toMetadata(): Metadata {
    return {
      "tokenizer.ggml.tokens": texts(this.tokens),
      "tokenizer.ggml.scores": f32s(this.#scores),
      "tokenizer.ggml.token_type": i32s(this.types.map((type) => tokenTypes[type])),
    };
  }
}

/** The text of the token for one byte, as llama.cpp looks it up. */
export function byteToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** Everyday words, so that ordinary prompts make fewer tokens than letters. */
const COMMON_WORDS =
  "about after again all also always and another answer any are ask away back be because before best bird blue book " +
  "both bring but by call can cat city come could day do does each earth end even every eye face family far few " +
  "find fire first fish for from full game garden get give go good great green hand have he head hear hello help " +
  "her here high him his home hour house how if in into is it just keep kind know large last late learn leave let " +
  "life light like line little live long look love make man many may me mean memory mind model moon more most " +
  "mother move much must my name near need never new night no not now number of off old on one only open or other " +
  "our out over own page part people place plant play please point question rain read remember right river room run " +
  "same say school sea see seven she short should show side sing sky small so some song star start still stop story " +
  "sun system table take talk tell than thank that the their them then there these they thing think this three time " +
  "to today together tree two under until up us user use very walk want warm was water way we well were what when " +
  "where which while white who why will wind winter with woman word work world would write year yes you young your";

/**
 * A vocabulary for the SPM tokenizer: control tokens, all bytes, ChatML tokens, the printable ASCII characters, and words
 * with each of their prefixes, since SPM builds a word by joining two neighbours at a time.
 */
export function spmVocabulary(extraWords: readonly string[] = [], leastSize = 0): Vocabulary {
  const vocabulary = new Vocabulary();
  vocabulary.add("<unk>", "unknown");
  vocabulary.add("<s>", "control");
  vocabulary.add("</s>", "control");
  for (let byte = 0; byte < 256; byte++) vocabulary.add(byteToken(byte), "byte");
  vocabulary.add(CHAT_START, "control");
  vocabulary.add(CHAT_END, "control");
  vocabulary.add(SPACE, "normal", -1);
  for (let code = 33; code < 127; code++) vocabulary.add(String.fromCharCode(code), "normal", -1000);
  for (const word of [...extraWords, ...COMMON_WORDS.split(" ")]) {
    for (let length = 1; length <= word.length; length++) {
      vocabulary.add(SPACE + word.slice(0, length), "normal", -2 - length);
    }
  }
  while (vocabulary.size < leastSize) vocabulary.add(`${SPACE}filler${vocabulary.size}`, "normal", -900);
  return vocabulary;
}

/** What the two generating vocabularies have in common. */
function controlTokens(vocabulary: Vocabulary): Metadata {
  return {
    "tokenizer.ggml.bos_token_id": u32(vocabulary.id("<s>")),
    "tokenizer.ggml.eos_token_id": u32(vocabulary.id("</s>")),
    "tokenizer.ggml.unknown_token_id": u32(vocabulary.id("<unk>")),
    "tokenizer.ggml.eot_token_id": u32(vocabulary.id(CHAT_END)),
    "tokenizer.ggml.add_bos_token": bool(true),
    "tokenizer.ggml.add_eos_token": bool(false),
  };
}

/**
 * Tokenizer metadata of an {@link spmVocabulary}, with the ChatML template unless another one is given. `spacePrefix`: read
 * a text as if it began with a space.
 */
export function spmTokenizer(vocabulary: Vocabulary, spacePrefix = true, chatTemplate = CHAT_TEMPLATE): Metadata {
  return {
    "tokenizer.ggml.model": text("llama"),
    "tokenizer.ggml.pre": text("default"),
    ...vocabulary.toMetadata(),
    ...controlTokens(vocabulary),
    "tokenizer.ggml.add_space_prefix": bool(spacePrefix),
    "tokenizer.chat_template": text(chatTemplate),
  };
}

/** A vocabulary for the WPM tokenizer, which lower-cases: special tokens, ASCII characters as word and as rest of a word, whole words. */
export function wpmVocabulary(extraWords: Iterable<string> = [], leastSize = 0): Vocabulary {
  const vocabulary = new Vocabulary();
  for (const special of ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) vocabulary.add(special, "control");
  for (let code = 33; code < 127; code++) {
    vocabulary.add(SPACE + String.fromCharCode(code));
    vocabulary.add(String.fromCharCode(code));
  }
  for (const word of [...extraWords, ...COMMON_WORDS.split(" ")]) vocabulary.add(SPACE + word);
  while (vocabulary.size < leastSize) vocabulary.add(`${SPACE}filler${vocabulary.size}`);
  return vocabulary;
}

/** Tokenizer metadata of a {@link wpmVocabulary}. */
export function wpmTokenizer(vocabulary: Vocabulary): Metadata {
  return {
    "tokenizer.ggml.model": text("bert"),
    "tokenizer.ggml.pre": text("jina-v2-en"),
    "tokenizer.ggml.token_type_count": u32(2),
    ...vocabulary.toMetadata(),
    "tokenizer.ggml.padding_token_id": u32(vocabulary.id("[PAD]")),
    "tokenizer.ggml.unknown_token_id": u32(vocabulary.id("[UNK]")),
    "tokenizer.ggml.cls_token_id": u32(vocabulary.id("[CLS]")),
    "tokenizer.ggml.bos_token_id": u32(vocabulary.id("[CLS]")),
    // llama.cpp spells this key so
    "tokenizer.ggml.seperator_token_id": u32(vocabulary.id("[SEP]")),
    "tokenizer.ggml.eos_token_id": u32(vocabulary.id("[SEP]")),
    "tokenizer.ggml.mask_token_id": u32(vocabulary.id("[MASK]")),
  };
}

/**
 * A vocabulary for the UGM tokenizer, which reads whole words without needing their prefixes. `pieces` are words and marks
 * as they lie in a text, a leading space included, the most frequent first; single ASCII characters are the fallback.
 */
export function ugmVocabulary(pieces: readonly string[]): Vocabulary {
  const vocabulary = new Vocabulary();
  vocabulary.add("<pad>", "control");
  vocabulary.add("</s>", "control");
  vocabulary.add("<unk>", "unknown");
  vocabulary.add("<s>", "control");
  vocabulary.add(CHAT_START, "control");
  vocabulary.add(CHAT_END, "control");
  // Any two pieces score below any one, so a whole word always wins over its parts.
  pieces.forEach((piece, rank) =>
    vocabulary.add(piece.replaceAll(" ", SPACE), "normal", -10 - (8 * rank) / pieces.length),
  );
  vocabulary.add("\n", "normal", -20);
  vocabulary.add(SPACE, "normal", -20);
  for (let code = 33; code < 127; code++) vocabulary.add(String.fromCharCode(code), "normal", -20);
  return vocabulary;
}

/** Tokenizer metadata of a {@link ugmVocabulary}, with the ChatML template. */
export function ugmTokenizer(vocabulary: Vocabulary): Metadata {
  return {
    "tokenizer.ggml.model": text("t5"),
    "tokenizer.ggml.pre": text("default"),
    ...vocabulary.toMetadata(),
    "tokenizer.ggml.padding_token_id": u32(vocabulary.id("<pad>")),
    ...controlTokens(vocabulary),
    "tokenizer.ggml.add_space_prefix": bool(true),
    "tokenizer.ggml.remove_extra_whitespaces": bool(false),
    "tokenizer.chat_template": text(CHAT_TEMPLATE),
  };
}
