import type { Clock, GenerationStream, Lease } from "../api.js";
import { LeaseReleasedError } from "../errors.js";
import type { ChatMessage, GenerateOptions, RequestOptions } from "../inference.js";
import type { Held } from "./dispatch.js";
import type { InferenceCalls } from "./inference-calls.js";

/** A model that is held until the release, with the inference calls on it. */
export class ModelLease implements Lease {
  readonly #held: Held;
  readonly #clock: Clock;
  readonly #calls: InferenceCalls;
  #released = false;

  constructor(held: Held, clock: Clock, calls: InferenceCalls) {
    this.#held = held;
    this.#clock = clock;
    this.#calls = calls;
  }

  get modelId(): string {
    return this.#held.entry.id;
  }

  get incarnation(): number {
    return this.#held.entry.incarnation;
  }

  get native(): unknown {
    this.#check();
    return this.#held.live.backing.native;
  }

  generate(prompt: string, options?: GenerateOptions) {
    return this.#calls.generate(this.#take, prompt, options);
  }

  stream(prompt: string, options?: GenerateOptions): GenerationStream {
    return this.#calls.stream(this.#take, prompt, options);
  }

  chat(messages: readonly ChatMessage[], options?: GenerateOptions) {
    return this.#calls.chat(this.#take, messages, options);
  }

  streamChat(messages: readonly ChatMessage[], options?: GenerateOptions): GenerationStream {
    return this.#calls.streamChat(this.#take, messages, options);
  }

  embed(text: string, options?: RequestOptions) {
    return this.#calls.embed(this.#take, text, options);
  }

  embedMany(texts: readonly string[], options?: RequestOptions) {
    return this.#calls.embedMany(this.#take, texts, options);
  }

  rank(query: string, documents: readonly string[], options?: RequestOptions) {
    return this.#calls.rank(this.#take, query, documents, options);
  }

  tokenize(text: string) {
    return this.#calls.tokenize(this.#take, text);
  }

  detokenize(tokens: readonly number[]) {
    return this.#calls.detokenize(this.#take, tokens);
  }

  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#held.live.block.release(this.#clock.now());
  }

  [Symbol.dispose](): void {
    this.release();
  }

  /** Each call holds the model for itself, so that one which outlives the lease keeps it until it is done. */
  readonly #take = (): Held => {
    this.#check();
    this.#held.live.block.retain();
    return this.#held;
  };

  #check(): void {
    if (this.#released) throw new LeaseReleasedError(this.modelId);
  }
}
