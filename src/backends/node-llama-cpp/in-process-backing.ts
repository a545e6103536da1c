/** One live model in this process: its calls, what it holds, and its end, which comes once and in one order. */
import type { LlamaModel } from "node-llama-cpp";
import { BackingCrashedError, RequestAbortedError } from "../../errors.js";
import type { SlotLayout } from "../../model.js";
import type {
  Backing,
  BackingExit,
  BackingRequest,
  ChatSampling,
  Completion,
  MemoryNeed,
  Overflow,
  Sampling,
  StartSpec,
} from "../backend.js";
import type { ChatMessage } from "../../inference.js";
import { PromptMaker, type Prompt } from "./chat-prompt.js";
import type { ContextBytes } from "./contexts.js";
import type { Embedder, Ranker } from "./direct-backing.js";
import type { GgufModel } from "./gguf-file.js";
import { makeJob } from "./generation.js";
import { Intake } from "./intake.js";
import { checkText } from "./sampling.js";
import { TokenizerGuard } from "./tokenizer-guard.js";
import type { Job } from "./slot-run.js";
import { structureOf } from "./structured-output.js";
import { TurnReader } from "./turn-reader.js";
import { checkTokenIds, tokenBiasOf } from "./vocabulary.js";

/** What serves the calls; a part for each context of the plan. */
export interface BackingParts {
  generation?: { readonly queued: number; submit(job: Job): Promise<Completion> };
  embedder?: Embedder;
  ranker?: Ranker;
  layout?: SlotLayout;
}

/** The library's event of an object that is being disposed. */
interface DisposeEvent {
  createListener(listener: () => void): { dispose(): void };
}

/** What a backing is of. */
interface BackingSubject {
  readonly spec: StartSpec;
  readonly file: GgufModel;
  /** Other backings may have the same. */
  readonly model: LlamaModel;
  readonly weightsKey: string;
}

export class InProcessBacking {
  readonly #spec: StartSpec;
  readonly #file: GgufModel;
  readonly #model: LlamaModel;
  readonly #weightsKey: string;
  readonly #disposeNative: () => Promise<void>;
  readonly #intake = new Intake();
  readonly #contexts: ContextBytes[] = [];
  readonly #exited: Promise<BackingExit>;
  readonly #tokenizerGuard: TokenizerGuard;
  #resolveExited: (exit: BackingExit) => void = () => undefined;
  #ending: Promise<void> | undefined;
  #isGone = false;

  constructor({ spec, file, model, weightsKey }: BackingSubject, disposeNative: () => Promise<void>) {
    this.#spec = spec;
    this.#file = file;
    this.#model = model;
    this.#weightsKey = weightsKey;
    this.#tokenizerGuard = new TokenizerGuard(file.info);
    this.#disposeNative = disposeNative;
    this.#exited = new Promise((resolve) => {
      this.#resolveExited = resolve;
    });
  }

  /** Counts a context's bytes into `memory()`. */
  hold(bytes: ContextBytes): void {
    this.#contexts.push(bytes);
  }

  /** An object that is disposed while this backing lives was disposed behind its back. Returns the way to stop listening. */
  watch(event: DisposeEvent): () => void {
    const listener = event.createListener(() =>
      this.crash(new Error("A native object was disposed from outside of its backing")),
    );
    return () => listener.dispose();
  }

  /** The native side cannot go on. All requests reject; what is left is given back; then `exited` resolves. */
  crash(cause: unknown): void {
    if (this.#ending !== undefined) return;
    const { modelId, incarnation } = this.#spec;
    // told at once: an engine that never falls quiet again must not keep the end a secret
    this.#resolveExited({ reason: "crashed", cause });
    this.#ending = this.#end(new BackingCrashedError({ modelId, incarnation, cause }));
    // A disposal that fails now adds nothing to the crash; who calls `dispose` is told.
    this.#ending.catch(() => undefined);
  }

  /** The backing as the manager sees it: with the methods of its capabilities and no others. */
  open(parts: BackingParts): Backing {
    const { capabilities } = this.#spec.profile;
    const { generation, embedder, ranker, layout } = parts;
    const prompts = new PromptMaker(this.#file, this.#model, {
      modelId: this.#spec.modelId,
      contextSize: this.#spec.profile.contextSize,
      guard: this.#tokenizerGuard,
    });
    const generate = (sampling: Sampling, request: BackingRequest, makePrompt: () => Prompt | Promise<Prompt>) =>
      this.#generate(generation, sampling, request, makePrompt);
    return {
      exited: this.#exited,
      native: this.#model,
      ...(layout && { layout }),
      memory: () => this.#memory(),
      queued: () => (generation?.queued ?? 0) + (embedder?.queued ?? 0) + (ranker?.queued ?? 0),
      ...(capabilities.includes("generate") && {
        generate: (prompt: string, sampling: Sampling, request: BackingRequest) =>
          generate(sampling, request, () => prompts.fromText(prompt, sampling)),
      }),
      ...(capabilities.includes("chat") && {
        chat: (messages: readonly ChatMessage[], sampling: ChatSampling, request: BackingRequest) =>
          generate(sampling, request, () => prompts.fromMessages(messages, sampling)),
      }),
      ...(embedder && {
        embed: (texts: readonly string[], overflow: Overflow, request: BackingRequest) =>
          this.#intake.run(request, async (signal) => {
            for (const text of texts) this.#tokenizerGuard.check("text", text);
            return embedder.embed(texts, overflow, request, signal);
          }),
      }),
      ...(ranker && {
        rank: (query: string, documents: readonly string[], overflow: Overflow, request: BackingRequest) =>
          this.#intake.run(request, async (signal) => {
            this.#tokenizerGuard.check("query", query);
            for (const document of documents) this.#tokenizerGuard.check("documents", document);
            return ranker.rank(query, documents, overflow, request, signal);
          }),
      }),
      tokenize: (text) => this.#tokenize(text),
      detokenize: (tokens) => this.#detokenize(tokens),
      dispose: () => this.#dispose(),
    };
  }

  #generate(
    generation: BackingParts["generation"],
    sampling: Sampling,
    request: BackingRequest,
    makePrompt: () => Prompt | Promise<Prompt>,
  ): Promise<Completion> {
    const submittedAt = performance.now();
    const { modelId, profile } = this.#spec;
    return this.#intake.run(request, async (signal) => {
      if (generation === undefined) throw new TypeError("This backing has no context to generate in");
      // without these nothing is awaited: the request is in the queue by then
      const isFree = sampling.jsonSchema === undefined && sampling.grammar === undefined;
      const structure = isFree ? undefined : await structureOf(this.#model, sampling);
      const tokenBias = sampling.logitBias && (await tokenBiasOf(this.#model, sampling.logitBias));
      const prompt = await makePrompt();
      const { contextSize } = profile;
      const reader = prompt.turn && (await TurnReader.make(this.#model, prompt.turn, request.id));
      const call = {
        modelId,
        contextSize,
        prompt,
        sampling,
        structure,
        tokenBias,
        reader,
        request,
        signal,
        submittedAt,
      };
      return generation.submit(makeJob(this.#model, call));
    });
  }

  async #tokenize(text: string): Promise<number[]> {
    this.#intake.check();
    checkText("text", text);
    this.#tokenizerGuard.check("text", text);
    return this.#model.tokenize(text);
  }

  async #detokenize(tokens: readonly number[]): Promise<string> {
    this.#intake.check();
    return this.#model.detokenize(checkTokenIds(this.#model, "tokens", tokens));
  }

  #memory(): MemoryNeed {
    if (this.#isGone) return { ramBytes: 0, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes: 0 };
    const weights = this.#model.memoryUsage;
    const sum = (field: keyof ContextBytes) => this.#contexts.reduce((total, bytes) => total + bytes[field], 0);
    return {
      ramBytes: weights.ram + sum("ram"),
      gpuWeightsBytes: weights.vram,
      gpuContextBytes: sum("vram"),
      // Weights that the engine repacked lie in memory of their own, beside the mapped file.
      mappedBytes: this.#model.useMmap && !this.#model.disposed ? Math.min(weights.ram, this.#model.size) : 0,
      shared: { key: this.#weightsKey, ramBytes: weights.ram },
    };
  }

  #dispose(): Promise<void> {
    this.#ending ??= this.#end(new RequestAbortedError(this.#spec.modelId, "the model is being unloaded"));
    return this.#ending;
  }

  /** First everything in flight settles, for the engine crashes when it is disposed under an evaluation. */
  async #end(reason: Error): Promise<void> {
    await this.#intake.close(reason);
    try {
      await this.#disposeNative();
      this.#isGone = true;
      this.#resolveExited({ reason: "disposed" });
    } catch (cause) {
      this.#resolveExited({ reason: "crashed", cause });
      throw cause;
    }
  }
}
