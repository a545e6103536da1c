/** The requests of the soak: drawn at random by their number, run, and judged. */
import { setTimeout as pause } from "node:timers/promises";
import { isModelSupervisorError } from "../../src/index.js";
import type { ChatMessage, ErrorCode, GenerateOptions, GenerateResult, ModelManager } from "../../src/index.js";
import { recallKeys } from "../../src/testing/index.js";
import { seededRandom } from "../../src/testing/gguf/random.js";
import type { Random } from "../../src/testing/gguf/random.js";

export const SOAK_CONTEXT = 1_024;

/** In what share of the requests. Those of {@link ANSWERED} are well-formed and left alone: they are to be answered. */
export const SHARES = {
  generate: 0.28,
  stream: 0.16,
  chat: 0.12,
  streamChat: 0.08,
  /** Aborted at a random time, or at the first piece. */
  abort: 0.12,
  /** Given a random time that may be too short. */
  timeout: 0.04,
  /** A stream whose reader leaves the loop. */
  left: 0.06,
  /** A stream whose reader pulls once and never again. */
  dropped: 0.04,
  /** A stream that nobody ever pulls. */
  unread: 0.02,
  /** Something that is to be refused. */
  bad: 0.08,
  /** Of a model that can do both. */
  embed: 0,
};
export type Kind = keyof typeof SHARES;
export type Shares = Readonly<Record<Kind, number>>;
export const ANSWERED: readonly Kind[] = ["generate", "stream", "chat", "streamChat", "embed"];

/**
 * `exact`: the right answer. `wrong`: another one, or a behaviour that must not be. `refused`: bad input, refused with
 * the right code. `aborted`: with the caller's own reason. `gone`: nobody waited for the answer. `failed`: a typed
 * error. `untyped`: any other.
 */
export type Verdict = "exact" | "wrong" | "refused" | "aborted" | "gone" | "failed" | "untyped";

export interface Outcome {
  readonly kind: Kind;
  readonly verdict: Verdict;
  readonly detail: string;
  readonly cachedTokens: number;
}

/** The word that request `number` asks for; the `shift` of the control puts another one into its prompt. */
export function keyOf(number: number, shift = 0): string {
  return recallKeys[(number + shift) % recallKeys.length] ?? "";
}

const FILLER = "some text that stands before it ";
/** Tokens of it: at least so many. */
const FILLER_TOKENS = 6;
const OPENING_SENTENCES = 12;
/** About what the slowest requests take. */
const LATENCY_MS = 300;
/** Of a vector to the one that came when nothing else ran. */
const LEAST_COSINE = 0.999_999;

/** Who is asked, and what its answers are. */
export interface Subject {
  readonly modelId: string;
  /** What its answers begin with. */
  readonly opening: string;
  /** The vector of {@link embeddedText} of each key. */
  readonly embeddings?: ReadonlyMap<string, readonly number[]>;
}

/** The model that is loaded as "m" and made without options. */
const ONLY: Subject = { modelId: "m", opening: "your word is" };

export interface SoakRequest {
  readonly models: ModelManager;
  readonly subject?: Subject;
  readonly shares?: Shares;
  readonly number: number;
  readonly seed: number;
  /** Other than 0 in the control. */
  readonly shift: number;
}

/** Runs one request to its end and tells what became of it. Never rejects. */
export async function runRequest(request: SoakRequest): Promise<Outcome> {
  const { models, subject = ONLY, shares = SHARES, number, seed, shift } = request;
  const random = seededRandom(seed * 1_000_003 + number);
  const kind = draw(random, shares);
  const ask = new Ask(models, subject, random, keyOf(number, shift), keyOf(number));
  try {
    return { kind, cachedTokens: 0, ...(await ask[kind]()) };
  } catch (error) {
    const verdict = isModelSupervisorError(error) ? "failed" : "untyped";
    return { kind, verdict, detail: isModelSupervisorError(error) ? error.code : String(error), cachedTokens: 0 };
  }
}

/** What is given to `embed`: as short as can be, for it is one of many. */
export function embeddedText(key: string): string {
  return `the key is ${key}`;
}

function draw(random: Random, shares: Shares): Kind {
  let left = random() * Object.values(shares).reduce((sum, share) => sum + share, 0);
  for (const [kind, share] of Object.entries(shares) as [Kind, number][]) if ((left -= share) < 0) return kind;
  return "generate";
}

type Judged = Pick<Outcome, "verdict" | "detail"> & { readonly cachedTokens?: number };

/** One request; a method for each kind. */
class Ask implements Record<Kind, () => Promise<Judged>> {
  readonly #models: ModelManager;
  readonly #subject: Subject;
  readonly #id: string;
  readonly #random: Random;
  readonly #key: string;
  readonly #dueKey: string;
  readonly #answer: string;

  /** `key` is what the request asks with, `dueKey` what is to come of it. */
  constructor(models: ModelManager, subject: Subject, random: Random, key: string, dueKey: string) {
    this.#models = models;
    this.#subject = subject;
    this.#id = subject.modelId;
    this.#random = random;
    this.#key = key;
    this.#dueKey = dueKey;
    this.#answer = `${subject.opening} ${dueKey}`;
  }

  async generate(): Promise<Judged> {
    const options = this.#options();
    return this.#judge(await this.#models.generate(this.#id, this.#prompt(), options), options.maxTokens);
  }

  async chat(): Promise<Judged> {
    const options = this.#options();
    return this.#judge(await this.#models.chat(this.#id, this.#messages(), options), options.maxTokens);
  }

  stream(): Promise<Judged> {
    const options = this.#options();
    return this.#readAll(this.#models.stream(this.#id, this.#prompt(), options), options.maxTokens);
  }

  streamChat(): Promise<Judged> {
    const options = this.#options();
    return this.#readAll(this.#models.streamChat(this.#id, this.#messages(), options), options.maxTokens);
  }

  async abort(): Promise<Judged> {
    const controller = new AbortController();
    const reason = new Error("the caller's own");
    const options = { ...this.#options(), signal: controller.signal };
    const isAtFirstPiece = this.#random() < 0.3;
    const afterMs = isAtFirstPiece ? 60_000 : this.#random() * LATENCY_MS;
    const timer = setTimeout(() => controller.abort(reason), afterMs);
    try {
      if (!isAtFirstPiece)
        return this.#judge(await this.#models.generate(this.#id, this.#prompt(), options), options.maxTokens);
      for await (const _ of this.#models.stream(this.#id, this.#prompt(), options)) controller.abort(reason);
      return { verdict: "gone", detail: "" };
    } catch (error) {
      if (error === reason) return { verdict: "aborted", detail: "" };
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  async timeout(): Promise<Judged> {
    const options = { ...this.#options(), timeoutMs: Math.ceil(this.#random() * LATENCY_MS) };
    return this.#judge(await this.#models.generate(this.#id, this.#prompt(), options), options.maxTokens);
  }

  async left(): Promise<Judged> {
    const pieces = 1 + Math.floor(this.#random() * 3);
    const stream = this.#models.stream(this.#id, this.#prompt(), { ...this.#options(), maxTokens: 32 });
    let text = "";
    let count = 0;
    for await (const piece of stream) {
      text += piece;
      if (++count === pieces) break;
    }
    return this.#answer.startsWith(text.trim()) ? { verdict: "gone", detail: "" } : this.#wrong(text);
  }

  async dropped(): Promise<Judged> {
    const iterator = this.#models.stream(this.#id, this.#prompt(), this.#options())[Symbol.asyncIterator]();
    const { value } = await iterator.next();
    const text = typeof value === "string" ? value : "";
    return this.#answer.startsWith(text.trim()) ? { verdict: "gone", detail: "" } : this.#wrong(text);
  }

  async unread(): Promise<Judged> {
    this.#models.stream(this.#id, this.#prompt(), this.#options());
    await pause(1);
    return { verdict: "gone", detail: "" };
  }

  async embed(): Promise<Judged> {
    const { embedding } = await this.#models.embed(this.#id, embeddedText(this.#key));
    const due = this.#subject.embeddings?.get(this.#dueKey);
    if (due === undefined) throw new RangeError("It is not known what is due");
    const cosine = embedding.reduce((sum, value, index) => sum + value * (due[index] ?? NaN), 0);
    return cosine > LEAST_COSINE
      ? { verdict: "exact", detail: "" }
      : { verdict: "wrong", detail: `a vector at cosine ${cosine.toFixed(6)} to the one that was due` };
  }

  async bad(): Promise<Judged> {
    const cases = badCalls(this.#models, this.#id, this.#prompt());
    const chosen = cases[Math.floor(this.#random() * cases.length)];
    if (chosen === undefined) throw new RangeError("There is no such case");
    const [code, call] = chosen;
    try {
      await call();
    } catch (error) {
      if (isModelSupervisorError(error, code)) return { verdict: "refused", detail: "" };
      throw error;
    }
    return { verdict: "wrong", detail: `${code} was due, and nothing was refused` };
  }

  async #readAll(stream: ReturnType<ModelManager["stream"]>, maxTokens: number): Promise<Judged> {
    let text = "";
    for await (const piece of stream) text += piece;
    const result = await stream.result;
    if (result.text !== text)
      return { verdict: "wrong", detail: `pieces ${JSON.stringify(text)}, result ${JSON.stringify(result.text)}` };
    return this.#judge(result, maxTokens);
  }

  #judge({ text, finishReason, usage }: GenerateResult, maxTokens: number): Judged {
    const isWhole = finishReason === "stop" && text.trim() === this.#answer;
    const isCut = finishReason === "length" && usage.completionTokens === maxTokens;
    const isExact = isWhole || (isCut && text !== "" && this.#answer.startsWith(text.trim()));
    const { cachedTokens } = usage;
    return isExact ? { verdict: "exact", detail: "", cachedTokens } : this.#wrong(`${text} (${finishReason})`);
  }

  #wrong(text: string): Judged {
    return { verdict: "wrong", detail: `${JSON.stringify(this.#answer)} was due, ${JSON.stringify(text)} came` };
  }

  /** Three in four are short; the others fill up to most of a slot. Half are alike but for the key; in the others it stands anywhere. */
  #prompt(share = 1): string {
    const most = this.#random() < 0.75 ? 8 : (0.8 * SOAK_CONTEXT) / FILLER_TOKENS / 2;
    const sentences = Math.floor(this.#random() * most * share);
    const isAlike = this.#random() < 0.5;
    const before = isAlike ? OPENING_SENTENCES : Math.floor(this.#random() * (sentences + 1));
    return `${FILLER.repeat(before)}the key is ${this.#key} and here is more ${FILLER.repeat(Math.max(0, sentences - before))}`;
  }

  /** One to three turns. */
  #messages(): ChatMessage[] {
    const turns = 1 + Math.floor(this.#random() * 3);
    const messages: ChatMessage[] = this.#random() < 0.5 ? [{ role: "system", content: "be kind" }] : [];
    messages.push({ role: "user", content: this.#prompt(0.7) });
    for (let turn = 1; turn < turns; turn++) {
      const content = `${this.#subject.opening} ${this.#key}`;
      messages.push({ role: "assistant", content }, { role: "user", content: "and what was it again?" });
    }
    return messages;
  }

  /** A few scopes, so that what one request leaves in a slot is there for the next one. */
  #options() {
    return {
      maxTokens: this.#random() < 0.1 ? 1 + Math.floor(this.#random() * 3) : 32,
      temperature: [0, 0.8, 1.5][Math.floor(this.#random() * 3)] ?? 0,
      seed: Math.floor(this.#random() * 2 ** 32),
      scope: `scope ${Math.floor(this.#random() * 2)}`,
    } satisfies GenerateOptions;
  }
}

/** What is to be refused, and with which code. */
function badCalls(
  models: ModelManager,
  id: string,
  prompt: string,
): readonly (readonly [ErrorCode, () => Promise<unknown>])[] {
  const misspelt = { maxTokens: 8, temprature: 0 };
  const long = FILLER.repeat(SOAK_CONTEXT / 2);
  const loneSurrogate = `${prompt}\ud800`;
  return [
    ["invalid_option", () => models.generate(id, loneSurrogate)],
    ["invalid_option", () => models.chat(id, [{ role: "user", content: loneSurrogate }])],
    ["invalid_option", () => models.generate(id, prompt, { maxTokens: 0 })],
    ["invalid_option", () => models.generate(id, prompt, { maxTokens: NaN })],
    ["invalid_option", () => models.generate(id, prompt, misspelt)],
    ["invalid_option", () => models.generate(id, prompt, { stop: "" })],
    ["invalid_option", () => models.generate(id, prompt, { scope: "s".repeat(300) })],
    ["invalid_option", () => models.generate(id, prompt, { jsonSchema: { patternProperties: {} } })],
    ["invalid_option", () => models.chat(id, [])],
    ["invalid_option", () => models.detokenize(id, [1e9])],
    ["context_length_exceeded", () => models.generate(id, prompt, { maxTokens: 1e9 })],
    ["context_length_exceeded", () => models.generate(id, long)],
    ["context_length_exceeded", () => models.stream(id, long).result],
    ["unsupported_capability", () => models.embed(id, prompt)],
    ["not_loaded", () => models.generate("nobody", prompt)],
  ];
}
