/**
 * What a caller would write with node-llama-cpp alone. On the engine that our side runs on, for a second one in the
 * process would silence the first: an own copy of the model, own contexts of one thread each. Sequences are emptied
 * before a round and outside of what is timed.
 */
import { LlamaChatSession, LlamaCompletion } from "node-llama-cpp";
import type { LlamaContext, LlamaContextSequence, LlamaModel, Token } from "node-llama-cpp";
import { sharedEngine } from "../../src/backends/node-llama-cpp/engine.js";
import { CONTEXT_SIZE, TOKENS } from "./managed.js";

const GREEDY = { temperature: 0 } as const;
const THREADS = 1;

/** A model that the bare library has loaded. */
export class BareModel implements AsyncDisposable {
  readonly #model: LlamaModel;

  private constructor(model: LlamaModel) {
    this.#model = model;
  }

  static async load(file: string): Promise<BareModel> {
    const llama = await sharedEngine({ gpu: "auto", build: "never" });
    return new BareModel(await llama.loadModel({ modelPath: file, gpuLayers: 0 }));
  }

  /** One context, its sequences all at hand. */
  async loops(sequences: number, contextSize = CONTEXT_SIZE): Promise<BareLoops> {
    const batchSize = Math.min(512, contextSize * sequences);
    return new BareLoops(
      this.#model,
      await this.#model.createContext({ contextSize, sequences, batchSize, threads: THREADS }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#model.dispose();
  }
}

/** Generation loops on one context. Each resolves to the tokens/s of all its streams together. */
export class BareLoops {
  readonly #model: LlamaModel;
  readonly #context: LlamaContext;
  readonly #sequences: LlamaContextSequence[];

  constructor(model: LlamaModel, context: LlamaContext) {
    this.#model = model;
    this.#context = context;
    this.#sequences = Array.from({ length: context.totalSequences }, () => context.getSequence());
  }

  /** A `for await` for each stream, and none waits for another. */
  async free(prompts: readonly string[], tokens = TOKENS): Promise<number> {
    const streams = await this.#prepare(prompts);
    return this.#rate(prompts.length * tokens, () =>
      Promise.all(
        streams.map(async ({ sequence, prompt }) => {
          let count = 0;
          for await (const _ of sequence.evaluate(prompt, GREEDY)) if (++count === tokens) break;
        }),
      ),
    );
  }

  /** All streams advance together, a token at a time. */
  async stepped(prompts: readonly string[], tokens = TOKENS): Promise<number> {
    const streams = await this.#prepare(prompts);
    return this.#rate(prompts.length * tokens, async () => {
      const iterators = streams.map(({ sequence, prompt }) => sequence.evaluate(prompt, GREEDY));
      for (let step = 0; step < tokens; step++) await Promise.all(iterators.map((iterator) => iterator.next()));
      await Promise.all(iterators.map((iterator) => iterator.return()));
    });
  }

  /** The library's own completion, on the first sequence. */
  async completion(prompt: string, onTextChunk?: (text: string) => void, tokens = TOKENS): Promise<number> {
    const [stream] = await this.#prepare([prompt]);
    if (stream === undefined) throw new Error("There is no sequence");
    const completion = new LlamaCompletion({ contextSequence: stream.sequence });
    const rate = await this.#rate(tokens, () =>
      completion.generateCompletion(prompt, { ...GREEDY, maxTokens: tokens, ...(onTextChunk && { onTextChunk }) }),
    );
    const evaluated = stream.sequence.nextTokenIndex - stream.prompt.length;
    completion.dispose({ disposeSequence: false });
    return checked(rate, evaluated, tokens);
  }

  /**
   * The first turn of the library's own chat, on the first sequence. `systemPrompt`: of the session; `undefined` is the
   * library's default, of some 170 tokens.
   */
  async chat(prompt: string, systemPrompt: string | undefined, tokens = TOKENS): Promise<number> {
    const [stream] = await this.#prepare([prompt]);
    if (stream === undefined) throw new Error("There is no sequence");
    const { sequence } = stream;
    const session = new LlamaChatSession({
      contextSequence: sequence,
      autoDisposeSequence: false,
      ...(systemPrompt !== undefined && { systemPrompt }),
    });
    const before = sequence.tokenMeter.usedOutputTokens;
    const rate = await this.#rate(tokens, () => session.prompt(prompt, { ...GREEDY, maxTokens: tokens }));
    const sampled = sequence.tokenMeter.usedOutputTokens - before;
    session.dispose({ disposeSequence: false });
    return checked(rate, sampled, tokens);
  }

  /** Evaluates a prompt on the first sequence, so many tokens at a time. Milliseconds of each slice. */
  async slices(prompt: readonly Token[], sliceTokens: number): Promise<number[]> {
    const [stream] = await this.#prepare([""]);
    const times: number[] = [];
    for (let start = 0; start + sliceTokens <= prompt.length; start += sliceTokens) {
      const began = performance.now();
      await stream?.sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(start, start + sliceTokens));
      times.push(performance.now() - began);
    }
    return times;
  }

  tokenize(text: string): Token[] {
    const { bos } = this.#model.tokens;
    return [...(bos === null ? [] : [bos]), ...this.#model.tokenize(text)];
  }

  async #prepare(prompts: readonly string[]) {
    return Promise.all(
      prompts.map(async (text, index) => {
        const sequence = this.#sequences[index];
        if (sequence === undefined) throw new RangeError(`There is no sequence ${index}`);
        await sequence.clearHistory();
        return { sequence, prompt: this.tokenize(text) };
      }),
    );
  }

  async #rate(tokens: number, work: () => Promise<unknown>): Promise<number> {
    const began = performance.now();
    await work();
    const seconds = (performance.now() - began) / 1000;
    if (this.#context.currentThreads !== THREADS)
      throw new Error(`The bare loop ran on ${this.#context.currentThreads} threads`);
    return tokens / seconds;
  }
}

function checked(rate: number, tokens: number, wanted: number): number {
  // the last token is sampled, but not always evaluated
  if (tokens !== wanted && tokens !== wanted - 1) throw new Error(`${wanted} tokens were wanted, ${tokens} came`);
  return rate;
}
