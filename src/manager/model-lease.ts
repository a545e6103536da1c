import type { Clock, GenerationStream, Lease } from "../api.js";
import { LeaseReleasedError } from "../errors.js";
import type { ChatMessage, ChatOptions, ChatResult, EmbedOptions, GenerateOptions, RankOptions } from "../inference.js";
import type { Abortable } from "../table/live-model.js";
import type { Target } from "./dispatch.js";
import { takeOver } from "./handover.js";
import type { InferenceCalls } from "./inference-calls.js";
import type { Held } from "./protocol.js";

/**
 * A model that is held until the release, with the inference calls on it. A forced unload, a close or a crash ends the
 * lease, unless its holder has taken the native object: what is done with that nobody can know, so only the release ends it.
 */
export class ModelLease implements Lease, Target, Abortable {
  readonly #held: Held;
  readonly #clock: Clock;
  readonly #calls: InferenceCalls;
  /** Set once the model is not held any more: what calls are refused with. */
  #refusal: { readonly error: unknown } | undefined;
  #nativeTaken = false;

  constructor(held: Held, clock: Clock, calls: InferenceCalls) {
    this.#held = held;
    this.#clock = clock;
    this.#calls = calls;
    takeOver(held, this);
  }

  get modelId(): string {
    return this.#held.entry.id;
  }

  get incarnation(): number {
    return this.#held.entry.incarnation;
  }

  get native(): unknown {
    this.#check();
    this.#nativeTaken = true;
    return this.#held.live.backing.native;
  }

  generate(prompt: string, options?: GenerateOptions) {
    return this.#calls.generate(this, prompt, options);
  }

  stream(prompt: string, options?: GenerateOptions): GenerationStream {
    return this.#calls.stream(this, prompt, options);
  }

  chat(messages: readonly ChatMessage[], options?: ChatOptions) {
    return this.#calls.chat(this, messages, options);
  }

  streamChat(messages: readonly ChatMessage[], options?: ChatOptions): GenerationStream<ChatResult> {
    return this.#calls.streamChat(this, messages, options);
  }

  embed(text: string, options?: EmbedOptions) {
    return this.#calls.embed(this, text, options);
  }

  embedMany(texts: readonly string[], options?: EmbedOptions) {
    return this.#calls.embedMany(this, texts, options);
  }

  rank(query: string, documents: readonly string[], options?: RankOptions) {
    return this.#calls.rank(this, query, documents, options);
  }

  tokenize(text: string) {
    return this.#calls.tokenize(this, text);
  }

  detokenize(tokens: readonly number[]) {
    return this.#calls.detokenize(this, tokens);
  }

  release(): void {
    this.#end(new LeaseReleasedError(this.modelId));
  }

  /** The model is being taken away: by force, or because it is gone. */
  abort(reason: unknown): void {
    if (this.#nativeTaken) this.#refusal ??= { error: reason };
    else this.#end(reason);
  }

  #end(error: unknown): void {
    if (!this.#held.live.requests.delete(this)) return;
    this.#refusal ??= { error };
    this.#held.live.block.release(this.#clock.now());
  }

  [Symbol.dispose](): void {
    this.release();
  }

  /** Each call holds the model for itself, so that one which outlives the lease keeps it until it is done. */
  hold(): Held {
    this.#check();
    this.#held.live.block.retain();
    return this.#held;
  }

  /** There is nothing to wait for: it is held. */
  wait(): Promise<Held> {
    return Promise.resolve(this.hold());
  }

  #check(): void {
    if (this.#refusal) throw this.#refusal.error;
  }
}
