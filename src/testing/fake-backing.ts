import type {
  Backing,
  BackingExit,
  BackingRequest,
  Completion,
  Embeddings,
  MemoryNeed,
  Overflow,
  QueueLimit,
  Ranking,
  Sampling,
  StartSpec,
} from "../backends/backend.js";
import { ContextLengthExceededError, InvalidOptionError, QueueFullError } from "../errors.js";
import type { ChatMessage, FinishReason, TokenLogprob, ToolCall } from "../inference.js";
import type { Capability } from "../model.js";
import { partsOf, words, type FakeReply } from "./fake-reply.js";

/** What a fake model is made of; see {@link FakeModel}. */
export interface FakeBackingScript {
  readonly memory: MemoryNeed;
  readonly reply: (prompt: string) => string | FakeReply;
  /** Passes a step of this model: it may be held there, or made to fail. */
  readonly step: (step: "generate" | "token" | "embed" | "rank" | "dispose", signal?: AbortSignal) => Promise<void>;
  readonly onDisposed: (requestsInFlight: number) => void;
}

const VECTOR_SIZE = 16;

/** A backing without an engine: answers are words of a script, vectors come from the letters of the text. */
export class FakeBacking implements Backing {
  readonly exited: Promise<BackingExit>;
  readonly native: { readonly fake: true; readonly modelId: string };
  generate?: NonNullable<Backing["generate"]>;
  chat?: NonNullable<Backing["chat"]>;
  embed?: NonNullable<Backing["embed"]>;
  rank?: NonNullable<Backing["rank"]>;
  readonly #spec: StartSpec;
  readonly #script: FakeBackingScript;
  readonly #queueLimit: QueueLimit | undefined;
  readonly #waiting: { start(): void; fail(error: unknown): void }[] = [];
  /** One for each request that runs: makes it end. */
  readonly #running = new Set<(error: unknown) => void>();
  readonly #vocabulary = new Map<string, number>();
  #slotsTaken = 0;
  #ended: { readonly error: unknown } | undefined;
  #exit: (exit: BackingExit) => void = () => undefined;
  #disposal: Promise<void> | undefined;

  constructor(spec: StartSpec, script: FakeBackingScript, queueLimit?: QueueLimit) {
    this.#spec = spec;
    this.#queueLimit = queueLimit;
    this.#script = script;
    this.native = { fake: true, modelId: spec.modelId };
    this.exited = new Promise((resolve) => {
      this.#exit = resolve;
    });
    const has = (capability: Capability) => spec.profile.capabilities.includes(capability);
    if (has("generate"))
      this.generate = (prompt, sampling, request) => this.#generate(prompt, sampling, request, false);
    if (has("chat"))
      this.chat = (messages, sampling, request) => this.#generate(chatText(messages), sampling, request, true);
    if (has("embed")) this.embed = (texts, overflow, request) => this.#embed(texts, overflow, request);
    if (has("rank"))
      this.rank = (query, documents, overflow, request) => this.#rank(query, documents, overflow, request);
  }

  get hasEnded(): boolean {
    return this.#ended !== undefined;
  }

  get requestsInFlight(): number {
    return this.#running.size;
  }

  memory(): MemoryNeed {
    return this.#script.memory;
  }

  queued(): number {
    return this.#waiting.length;
  }

  /** Ends the backing as a crash: `exited` settles, then everything in flight rejects with `cause`. */
  crash(exit: Omit<Extract<BackingExit, { reason: "crashed" }>, "reason">): void {
    this.#exit({ reason: "crashed", ...exit });
    this.#end(exit.cause);
  }

  /** Admits nobody any more, and ends what waits or runs. */
  #end(error: unknown): void {
    this.#ended = { error };
    for (const waiting of this.#waiting.splice(0)) waiting.fail(error);
    for (const fail of [...this.#running]) fail(error);
  }

  async tokenize(text: string): Promise<number[]> {
    return words(text).map((word) => this.#tokenOf(word));
  }

  #tokenOf(word: string): number {
    const id = this.#vocabulary.get(word) ?? this.#vocabulary.size;
    this.#vocabulary.set(word, id);
    return id;
  }

  /** The script leaves no choice, so every word is certain. */
  #logprobOf(word: string, topLogprobs: number): TokenLogprob {
    const likely = { token: this.#tokenOf(word), text: word, logprob: 0 };
    return topLogprobs === 0 ? likely : { ...likely, top: [likely] };
  }

  async detokenize(tokens: readonly number[]): Promise<string> {
    const known = [...this.#vocabulary.keys()];
    const unknown = tokens.find((token) => token >= known.length);
    if (unknown !== undefined) throw new InvalidOptionError("tokens", `token ids below ${known.length}`, unknown);
    return tokens.map((token) => known[token]).join("");
  }

  dispose(): Promise<void> {
    this.#disposal ??= this.#dispose();
    return this.#disposal;
  }

  async #dispose(): Promise<void> {
    const requestsInFlight = this.requestsInFlight;
    this.#end(new Error("The fake backing was disposed."));
    await this.#script.step("dispose");
    this.#script.onDisposed(requestsInFlight);
    this.#exit({ reason: "disposed" });
  }

  async #generate(prompt: string, sampling: Sampling, request: BackingRequest, isChat: boolean): Promise<Completion> {
    const { promptTokens, maxTokens, truncatedTokens } = this.#room(words(prompt).length, sampling);
    return this.#inSlot(request, async (signal) => {
      request.phase = "prefill";
      await this.#script.step("generate", signal);
      request.phase = "decode";
      let text = "";
      let reasoning = "";
      const toolCalls: ToolCall[] = [];
      let completionTokens = 0;
      const { topLogprobs } = sampling;
      const logprobs: TokenLogprob[] = [];
      let finishReason: FinishReason = "stop";
      for (const part of partsOf(this.#script.reply(prompt), request.id, isChat)) {
        if (completionTokens === maxTokens) {
          finishReason = "length";
          break;
        }
        if (request.isPaused) await resumed(request, signal);
        await this.#script.step("token", signal);
        completionTokens += 1;
        if (part.type !== "text") {
          if (part.type === "reasoning") reasoning += part.text;
          else toolCalls.push(part.toolCall);
          request.onPart?.(part);
          continue;
        }
        const cut = firstStop(text + part.text, sampling.stop);
        const piece = cut === undefined ? part.text : (text + part.text).slice(text.length, cut);
        text += piece;
        const told = topLogprobs === undefined ? undefined : [this.#logprobOf(part.text, topLogprobs)];
        logprobs.push(...(told ?? []));
        if (piece !== "") request.onPart?.({ type: "text", text: piece, ...(told && { logprobs: told }) });
        if (cut === undefined) continue;
        finishReason = "stop-sequence";
        break;
      }
      return {
        text,
        finishReason: finishReason === "stop" && toolCalls.length > 0 ? "tool-calls" : finishReason,
        ...(toolCalls.length > 0 && { toolCalls }),
        ...(reasoning !== "" && { reasoning }),
        usage: { promptTokens, completionTokens, cachedTokens: 0, ...(truncatedTokens > 0 && { truncatedTokens }) },
        timings: { queueMs: 0, prefillMs: 0, decodeMs: 0, timeToFirstTokenMs: 0 },
        ...(topLogprobs !== undefined && { logprobs }),
      };
    });
  }

  /** A conversation is one text here, so what it loses are its first words. */
  #room(length: number, { maxTokens: wanted, onOverflow }: Sampling) {
    const { modelId, profile } = this.#spec;
    const { contextSize } = profile;
    const most = contextSize - (wanted ?? Math.min(512, Math.floor(contextSize / 2)));
    const promptTokens = onOverflow === "truncate-oldest" && most > 0 ? Math.min(length, most) : length;
    const room = contextSize - promptTokens;
    const maxTokens = onOverflow === "stop" ? Math.min(wanted ?? 512, room) : (wanted ?? Math.min(512, room));
    if (room < 1 || maxTokens > room) throw new ContextLengthExceededError(modelId, contextSize, length, wanted);
    return { promptTokens, maxTokens, truncatedTokens: length - promptTokens };
  }

  #embed(texts: readonly string[], overflow: Overflow, request: BackingRequest): Promise<Embeddings> {
    const empty = texts.findIndex((text) => text === "");
    if (empty !== -1) return Promise.reject(new InvalidOptionError(`texts.${empty}`, "a non-empty text", ""));
    return this.#inSlot(request, async (signal) => {
      const inputs = texts.map((text) => this.#fit(text, overflow));
      await this.#script.step("embed", signal);
      return { embeddings: inputs.map(({ text }) => vectorOf(text)), ...countsOf(inputs) };
    });
  }

  #rank(query: string, documents: readonly string[], overflow: Overflow, request: BackingRequest): Promise<Ranking> {
    const empty = [query, ...documents].indexOf("");
    if (empty !== -1)
      return Promise.reject(new InvalidOptionError(empty === 0 ? "query" : "documents", "a non-empty text", ""));
    return this.#inSlot(request, async (signal) => {
      const inputs = documents.map((document) => this.#fit(document, overflow));
      await this.#script.step("rank", signal);
      const wanted = vectorOf(query);
      const scores = inputs.map(({ text }) => cosine(vectorOf(text), wanted));
      return { scores, ...countsOf(inputs) };
    });
  }

  /** A token is a word here. */
  #fit(text: string, overflow: Overflow): { text: string; length: number; truncated: boolean } {
    const { modelId, profile } = this.#spec;
    const all = words(text);
    if (all.length < profile.contextSize) return { text, length: all.length, truncated: false };
    if (overflow === "refuse") throw new ContextLengthExceededError(modelId, profile.contextSize, all.length);
    const kept = all.slice(0, profile.contextSize - 1);
    return { text: kept.join(""), length: kept.length, truncated: true };
  }

  /** Runs when a slot is free, as a real backing does: bounded queue, first come first served, a crash ends it. */
  async #inSlot<T>(request: BackingRequest, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { profile } = this.#spec;
    if (this.#ended) throw this.#ended.error;
    if (this.#slotsTaken >= profile.parallel) {
      this.#checkQueue();
      const turn = this.#queue(request.signal);
      request.queuePosition = this.#waiting.length;
      await turn; // the slot is handed over, so it stays taken
    } else this.#slotsTaken += 1;
    const ending = new AbortController();
    const end = (error: unknown) => ending.abort(error);
    const forward = () => end(request.signal.reason);
    request.signal.addEventListener("abort", forward, { once: true });
    this.#running.add(end);
    try {
      request.signal.throwIfAborted();
      return await work(ending.signal);
    } finally {
      request.signal.removeEventListener("abort", forward);
      this.#running.delete(end);
      const next = this.#waiting.shift();
      if (next) next.start();
      else this.#slotsTaken -= 1;
    }
  }

  #checkQueue(): void {
    const { modelId, profile } = this.#spec;
    const full = { modelId, queued: this.#waiting.length, limit: profile.maxQueue, retryAfterMs: 1_000 };
    if (this.#waiting.length >= profile.maxQueue) throw new QueueFullError({ ...full, of: "model" });
    const limit = this.#queueLimit;
    if (limit?.enter() === false)
      throw new QueueFullError({ ...full, of: "all", queued: limit.waiting, limit: limit.limit });
  }

  #queue(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave =
        <Args extends unknown[]>(then: (...args: Args) => void) =>
        (...args: Args) => {
          this.#queueLimit?.leave();
          then(...args);
        };
      const place = { start: leave(resolve), fail: leave(reject) };
      this.#waiting.push(place);
      signal.addEventListener(
        "abort",
        () => {
          const index = this.#waiting.indexOf(place);
          if (index === -1) return;
          this.#waiting.splice(index, 1);
          place.fail(signal.reason);
        },
        { once: true },
      );
    });
  }
}

/** Resolves when the reader has caught up; rejects when the request ends before. */
function resumed(request: BackingRequest, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    request.onResume = () => resolve();
  });
}

function countsOf(inputs: readonly { readonly length: number; readonly truncated: boolean }[]) {
  return {
    truncated: inputs.map(({ truncated }) => truncated),
    promptTokens: inputs.reduce((sum, { length }) => sum + length, 0),
  };
}

function chatText(messages: readonly ChatMessage[]): string {
  return messages.map((message) => message.content).join(" ");
}

/** Where the first stop sequence begins. */
function firstStop(text: string, stops: readonly string[]): number | undefined {
  const found = stops.map((stop) => text.indexOf(stop)).filter((index) => index !== -1);
  return found.length === 0 ? undefined : Math.min(...found);
}

/** How often each of some groups of letters occurs: a vector that depends on the letters of the text only. */
function vectorOf(text: string): number[] {
  const counts = Array.from({ length: VECTOR_SIZE }, () => 0);
  for (const letter of text) {
    const index = (letter.codePointAt(0) ?? 0) % VECTOR_SIZE;
    counts[index] = (counts[index] ?? 0) + 1;
  }
  return counts;
}

function cosine(a: readonly number[], b: readonly number[]): number {
  const product = a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);
  return Math.min(1, product / (Math.hypot(...a) * Math.hypot(...b) || 1));
}
