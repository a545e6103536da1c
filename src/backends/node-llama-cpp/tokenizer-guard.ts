/**
 * Texts that would end or stop the process while they are tokenized.
 *
 * Before BPE, llama.cpp cuts a text with a regular expression.
 * For some it has code of its own; the others run through `std::regex`, which calls itself for each character of a match:
 * 24,000 letters or spaces in a row overflow the stack (measured on 3.21.1; 12,000 do not).
 *
 * A sentencepiece vocabulary spells in bytes what it has no piece for, and llama.cpp makes room for each of them anew: the
 * time goes with their square (80,000: 0.4 s, 2^20: 30 s and more).
 */
import type { GgufFileInfo } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";

/** Characters of one kind in a row; some expressions match one run and the beginning of another. */
const MAX_RUN = 4096;

/** Bytes that a text may have to be spelled in. With as many tokens, hardly any context holds it; they take 1 s. */
const MAX_SPELLED_BYTES = 2 ** 17;
const MOST_BYTES_PER_UNIT = 3; // of UTF-8, for each unit of UTF-16

/** Names (`tokenizer.ggml.pre`) whose expressions have code of their own, or match a few characters at a time. */
const HARMLESS = new Set(
  (
    "a.x-4.0 chatglm-bpe codeshell command-r dbrx deepseek-r1-qwen exaone exaone4 f2llmv2 falcon-h1 falcon3 gemma4 " +
    "gigachat glm4 gpt-2 granite-docling granite-embed-multi-311m grok-2 hunyuan jais jina-de jina-es jina-v1-en " +
    "jina-v2-code jina-v2-de jina-v2-es jina-v5-nano kimi-k2 kormo laguna lfm2 llama-bpe llama-v3 llama3 megrez mellum " +
    "mellum2 midm-2.0 minerva-7b modern-bert mpt olmo phi-2 pixtral qwen2 qwen35 refact roberta-bpe sarvam-moe smaug-bpe " +
    "smollm solar-open stablelm2 starcoder trillion"
  ).split(" "),
);
/** What a single match can span: letters, numbers, spaces or signs. */
const ONE_KIND = /[\p{L}\p{M}]+|\p{N}+|\s+|[^\p{L}\p{M}\p{N}\s]+/gu;
/** Some match whatever is no space, and one the words of a whole sentence. */
const WIDER = new Map([
  ...["bloom", "gpt3-finnish", "poro-chat", "viking", "whitespace"].map((pre) => [pre, /\S+|\s+/gu] as const),
  ["exaone-moe", /[\p{L}\p{M} ]+|\p{N}+|\s+|[^\p{L}\p{M}\p{N}\s]+/gu] as const,
]);

export class TokenizerGuard {
  /** What one match of the model's expression can span, where that is dangerous. */
  readonly #run: RegExp | undefined;
  /** The vocabulary, where what is not in it is spelled in bytes. */
  readonly #pieces: readonly string[] | undefined;
  #known: Set<string> | undefined;

  constructor({ metadata: { tokenizer } }: GgufFileInfo) {
    if (tokenizer?.ggml?.model === "llama") this.#pieces = tokenizer.ggml.tokens;
    const pre = tokenizer?.ggml?.pre ?? "default";
    const isBpe = tokenizer?.ggml?.model === "gpt2";
    this.#run = isBpe && !HARMLESS.has(pre) ? (WIDER.get(pre) ?? ONE_KIND) : undefined;
  }

  /** @throws InvalidOptionError for a text that the engine must not see. */
  check(option: string, text: string): void {
    this.#checkSpelling(option, text);
    if (this.#run === undefined || text.length <= MAX_RUN) return;
    for (const { 0: run, index } of text.matchAll(this.#run)) {
      if (run.length <= MAX_RUN) continue;
      const expected = `at most ${MAX_RUN} letters, digits, spaces or signs in a row, for this model's tokenizer`;
      throw new InvalidOptionError(option, expected, `${run.length} from character ${index} on`);
    }
  }

  #checkSpelling(option: string, text: string): void {
    if (this.#pieces === undefined || text.length * MOST_BYTES_PER_UNIT <= MAX_SPELLED_BYTES) return;
    this.#known ??= new Set(this.#pieces.flatMap((piece) => Array.from(piece)));
    let spelled = 0;
    for (const character of text) {
      // a space is written as another character in the pieces
      if (character !== " " && !this.#known.has(character)) spelled += Buffer.byteLength(character);
    }
    if (spelled <= MAX_SPELLED_BYTES) return;
    const expected = `at most ${MAX_SPELLED_BYTES} bytes of what this model's vocabulary has no piece for`;
    throw new InvalidOptionError(option, expected, `${spelled} bytes`);
  }
}
