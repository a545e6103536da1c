import type { GenerationStream } from "../api.js";
import type { Backing, BackingRequest, Completion } from "../backends/backend.js";
import { UnsupportedCapabilityError } from "../errors.js";
import type {
  ChatMessage,
  ChatOptions,
  ChatResult,
  EmbedManyResult,
  EmbedOptions,
  EmbedResult,
  GenerateOptions,
  GenerateResult,
  RankOptions,
  RankResult,
} from "../inference.js";
import type { Capability } from "../model.js";
import type { Entry } from "../table/entry.js";
import { checkChatOptions, checkMessages } from "./chat-options.js";
import { run } from "./dispatch.js";
import type { DispatchContext, Target } from "./dispatch.js";
import { shapeEmbedding } from "./embedding-shape.js";
import { PulledGeneration } from "./generation-stream.js";
import type { Consumer } from "./in-flight-request.js";
import {
  checkEmbedOptions,
  checkGenerateOptions,
  checkRankOptions,
  checkText,
  checkTexts,
  checkTokens,
  type DispatchOptions,
} from "./request-options.js";

/** What a generation has been asked for, checked. */
interface Asked {
  readonly capability: "generate" | "chat";
  readonly request: DispatchOptions;
  /** `undefined` where the backing does not have the capability. */
  readonly on: (backing: Backing, request: BackingRequest) => Promise<Completion> | undefined;
}

/** The inference calls of the manager and of a lease: check the arguments, take a lease, run, shape the result. */
export class InferenceCalls {
  readonly #context: DispatchContext;

  constructor(context: DispatchContext) {
    this.#context = context;
  }

  async generate(target: Target, prompt: string, options: GenerateOptions = {}): Promise<GenerateResult> {
    return this.#generate(target, askText(prompt, options));
  }

  async chat(target: Target, messages: readonly ChatMessage[], options: ChatOptions = {}): Promise<ChatResult> {
    return this.#chat(target, askMessages(messages, options));
  }

  stream(target: Target, prompt: string, options: GenerateOptions = {}): GenerationStream {
    return new PulledGeneration(async (consumer) => this.#generate(target, askText(prompt, options), consumer));
  }

  streamChat(
    target: Target,
    messages: readonly ChatMessage[],
    options: ChatOptions = {},
  ): GenerationStream<ChatResult> {
    return new PulledGeneration(async (consumer) => this.#chat(target, askMessages(messages, options), consumer));
  }

  #generate(target: Target, asked: Asked, consumer?: Consumer): Promise<GenerateResult> {
    return this.#complete(target, asked, consumer, ({ text, finishReason, usage, timings, logprobs }) => ({
      text,
      finishReason,
      usage,
      timings,
      ...(logprobs && { logprobs }),
    }));
  }

  #chat(target: Target, asked: Asked, consumer?: Consumer): Promise<ChatResult> {
    return this.#complete(target, asked, consumer, ({ toolCalls = [], reasoning, ...completion }) => ({
      ...completion,
      toolCalls,
      ...(reasoning !== undefined && { reasoning }),
    }));
  }

  #complete<Result>(
    target: Target,
    asked: Asked,
    consumer: Consumer | undefined,
    resultOf: (completion: Completion) => Result,
  ): Promise<Result & { modelId: string; requestId: string }> {
    const call = { name: asked.capability, options: asked.request, consumer };
    return run(target, this.#context, call, async (backing, request, entry) => {
      const completion = await (asked.on(backing, request) ?? refuse(entry, asked.capability));
      return { ...resultOf(completion), modelId: entry.id, requestId: request.id };
    });
  }

  async embed(target: Target, text: string, options: EmbedOptions = {}): Promise<EmbedResult> {
    const { embeddings, truncated, usage } = await this.#embed(target, [checkText(text, "text")], options);
    return { embedding: embeddings[0] ?? [], usage, truncated: truncated[0] ?? false };
  }

  async embedMany(target: Target, texts: readonly string[], options: EmbedOptions = {}): Promise<EmbedManyResult> {
    return this.#embed(target, checkTexts(texts, "texts"), options);
  }

  async #embed(target: Target, texts: readonly string[], options: EmbedOptions): Promise<EmbedManyResult> {
    const wanted = checkEmbedOptions(options);
    return run(target, this.#context, { name: "embed", options: wanted }, async (backing, request, entry) => {
      const overflow = wanted.truncate ? "truncate" : "refuse";
      const got = await (backing.embed?.(texts, overflow, request) ?? refuse(entry, "embed"));
      return {
        embeddings: got.embeddings.map((vector) => shapeEmbedding(vector, wanted)),
        truncated: [...got.truncated],
        usage: { promptTokens: got.promptTokens },
      };
    });
  }

  async rank(
    target: Target,
    query: string,
    documents: readonly string[],
    options: RankOptions = {},
  ): Promise<RankResult> {
    const question = checkText(query, "query");
    const texts = checkTexts(documents, "documents");
    const wanted = checkRankOptions(options);
    const overflow = wanted.truncate ? "truncate" : "refuse";
    const { scores, truncated, promptTokens } = await run(
      target,
      this.#context,
      { name: "rank", options: wanted },
      async (backing, request, entry) => backing.rank?.(question, texts, overflow, request) ?? refuse(entry, "rank"),
    );
    const results = texts.map((document, index) => ({
      index,
      score: scores[index] ?? 0,
      document,
      truncated: truncated[index] ?? false,
    }));
    return { results: results.toSorted((a, b) => b.score - a.score), usage: { promptTokens } };
  }

  async tokenize(target: Target, text: string): Promise<number[]> {
    const checked = checkText(text, "text");
    return run(
      target,
      this.#context,
      { name: "tokenize", options: {} },
      async (backing, _request, entry) => backing.tokenize?.(checked) ?? refuse(entry, "generate"),
    );
  }

  async detokenize(target: Target, tokens: readonly number[]): Promise<string> {
    const checked = checkTokens(tokens);
    return run(
      target,
      this.#context,
      { name: "detokenize", options: {} },
      async (backing, _request, entry) => backing.detokenize?.(checked) ?? refuse(entry, "generate"),
    );
  }
}

/** Checks everything before a lease is taken. */
function askText(prompt: string, options: GenerateOptions): Asked {
  const text = checkText(prompt, "prompt");
  const { sampling, request } = checkGenerateOptions(options);
  return { capability: "generate", request, on: (backing, given) => backing.generate?.(text, sampling, given) };
}

function askMessages(messages: readonly ChatMessage[], options: ChatOptions): Asked {
  const checked = checkMessages(messages);
  const { sampling, request } = checkChatOptions(options);
  return { capability: "chat", request, on: (backing, given) => backing.chat?.(checked, sampling, given) };
}

function refuse({ id, profile }: Entry, capability: Capability): never {
  throw new UnsupportedCapabilityError(id, capability, profile?.mode ?? "server", profile?.capabilities ?? [], "model");
}
