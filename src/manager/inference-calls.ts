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
import type { Consumer, DispatchContext, Held } from "./dispatch.js";
import { shapeEmbedding } from "./embedding-shape.js";
import { PulledGeneration } from "./generation-stream.js";
import {
  checkEmbedOptions,
  checkGenerateOptions,
  checkRankOptions,
  checkText,
  checkTexts,
  checkTokens,
  type DispatchOptions,
} from "./options.js";

/** Takes the lease for one call; throws where there is none to be had. */
export type Take = () => Held;

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

  async generate(take: Take, prompt: string, options: GenerateOptions = {}): Promise<GenerateResult> {
    return this.#generate(take, askText(prompt, options));
  }

  async chat(take: Take, messages: readonly ChatMessage[], options: ChatOptions = {}): Promise<ChatResult> {
    return this.#chat(take, askMessages(messages, options));
  }

  stream(take: Take, prompt: string, options: GenerateOptions = {}): GenerationStream {
    return new PulledGeneration(async (consumer) => this.#generate(take, askText(prompt, options), consumer));
  }

  streamChat(take: Take, messages: readonly ChatMessage[], options: ChatOptions = {}): GenerationStream<ChatResult> {
    return new PulledGeneration(async (consumer) => this.#chat(take, askMessages(messages, options), consumer));
  }

  #generate(take: Take, asked: Asked, consumer?: Consumer): Promise<GenerateResult> {
    return this.#complete(take, asked, consumer, ({ text, finishReason, usage, timings, logprobs }) => ({
      text,
      finishReason,
      usage,
      timings,
      ...(logprobs && { logprobs }),
    }));
  }

  #chat(take: Take, asked: Asked, consumer?: Consumer): Promise<ChatResult> {
    return this.#complete(take, asked, consumer, ({ toolCalls = [], reasoning, ...completion }) => ({
      ...completion,
      toolCalls,
      ...(reasoning !== undefined && { reasoning }),
    }));
  }

  #complete<Result>(
    take: Take,
    asked: Asked,
    consumer: Consumer | undefined,
    resultOf: (completion: Completion) => Result,
  ): Promise<Result & { modelId: string; requestId: string }> {
    const held = take();
    return run(
      held,
      this.#context,
      { name: asked.capability, options: asked.request, consumer },
      async (backing, request) => {
        const completion = await (asked.on(backing, request) ?? refuse(held.entry, asked.capability));
        return { ...resultOf(completion), modelId: held.entry.id, requestId: request.id };
      },
    );
  }

  async embed(take: Take, text: string, options: EmbedOptions = {}): Promise<EmbedResult> {
    const { embeddings, truncated, usage } = await this.#embed(take, [checkText(text, "text")], options);
    return { embedding: embeddings[0] ?? [], usage, truncated: truncated[0] ?? false };
  }

  async embedMany(take: Take, texts: readonly string[], options: EmbedOptions = {}): Promise<EmbedManyResult> {
    return this.#embed(take, checkTexts(texts, "texts"), options);
  }

  async #embed(take: Take, texts: readonly string[], options: EmbedOptions): Promise<EmbedManyResult> {
    const wanted = checkEmbedOptions(options);
    const held = take();
    return run(held, this.#context, { name: "embed", options: wanted }, async (backing, request) => {
      const overflow = wanted.truncate ? "truncate" : "refuse";
      const got = await (backing.embed?.(texts, overflow, request) ?? refuse(held.entry, "embed"));
      return {
        embeddings: got.embeddings.map((vector) => shapeEmbedding(vector, wanted)),
        truncated: [...got.truncated],
        usage: { promptTokens: got.promptTokens },
      };
    });
  }

  async rank(take: Take, query: string, documents: readonly string[], options: RankOptions = {}): Promise<RankResult> {
    const question = checkText(query, "query");
    const texts = checkTexts(documents, "documents");
    const wanted = checkRankOptions(options);
    const held = take();
    const overflow = wanted.truncate ? "truncate" : "refuse";
    const { scores, truncated, promptTokens } = await run(
      held,
      this.#context,
      { name: "rank", options: wanted },
      async (backing, request) => backing.rank?.(question, texts, overflow, request) ?? refuse(held.entry, "rank"),
    );
    const results = texts.map((document, index) => ({
      index,
      score: scores[index] ?? 0,
      document,
      truncated: truncated[index] ?? false,
    }));
    return { results: results.toSorted((a, b) => b.score - a.score), usage: { promptTokens } };
  }

  async tokenize(take: Take, text: string): Promise<number[]> {
    const checked = checkText(text, "text");
    const held = take();
    return run(
      held,
      this.#context,
      { name: "tokenize", options: {} },
      async (backing) => backing.tokenize?.(checked) ?? refuse(held.entry, "generate"),
    );
  }

  async detokenize(take: Take, tokens: readonly number[]): Promise<string> {
    const checked = checkTokens(tokens);
    const held = take();
    return run(
      held,
      this.#context,
      { name: "detokenize", options: {} },
      async (backing) => backing.detokenize?.(checked) ?? refuse(held.entry, "generate"),
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
