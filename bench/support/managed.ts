/** Our side of the comparisons of speed: a model behind the public interface, and rounds of streams on it. */
import path from "node:path";
import { ModelSupervisor, nodeLlamaCpp } from "../../src/index.js";
import type { GenerateResult, ModelManager, ModelOptions } from "../../src/index.js";
import { isQuick } from "./measure.js";
import { CACHE, type BenchModel } from "./models.js";

/** Tokens of a slot, here and in the contexts of the others. */
export const CONTEXT_SIZE = 256;
/** Tokens of a stream. */
export const TOKENS = isQuick ? 16 : 128;

/** Rounds that are kept, by how long one takes; and one that warms up. */
export function roundsOf(file: BenchModel): { readonly rounds: number; readonly warmUp: number } {
  const rounds = {
    "tiny-f32": 25,
    "small-f16": 9,
    "small-f16-other": 9,
    "small-q4_0": 13,
    "large-f16": 5,
    "embed-tiny": 25,
    "embed-small": 9,
  };
  return { rounds: isQuick ? 2 : rounds[file], warmUp: 1 };
}

/** Prompts of about eight tokens, another for each stream. */
export function shortPrompts(streams: number): string[] {
  return Array.from({ length: streams }, (_, index) => `${"abcdefghijklmnop"[index % 16]} the cat is blue and`);
}

export interface ManagedOptions extends ModelOptions {
  readonly maxThreads: number;
}

/** Each benchmark measures anew: what was remembered may have been measured beside something else. */
const CALIBRATIONS = path.join(CACHE, `calibrations-${process.pid}.json`);

let started = 0;

/** One model with a manager of its own. */
export class Managed implements AsyncDisposable {
  readonly models: ModelManager;
  #rounds = 0;

  private constructor(models: ModelManager) {
    this.models = models;
  }

  static async load(source: string, { maxThreads, ...options }: ManagedOptions): Promise<Managed> {
    const models = await ModelSupervisor.start({
      name: `managed ${started++}`,
      backend: nodeLlamaCpp({ calibrationFile: CALIBRATIONS }),
      memoryBudget: "unlimited",
      maxThreads,
    });
    await models.load("m", source, { contextSize: CONTEXT_SIZE, gpuLayers: 0, ...options });
    return new Managed(models);
  }

  /** One greedy stream for each prompt, all at once. Tokens/s of all together. */
  generate(prompts: readonly string[], tokens = TOKENS): Promise<number> {
    return this.#rate(prompts, tokens, (prompt, options) => this.models.generate("m", prompt, options));
  }

  /** The same, read piece by piece as it comes. */
  stream(prompts: readonly string[], onPiece: (text: string) => void, tokens = TOKENS): Promise<number> {
    return this.#rate(prompts, tokens, async (prompt, options) => {
      const stream = this.models.stream("m", prompt, options);
      for await (const piece of stream) onPiece(piece);
      return stream.result;
    });
  }

  /** The same with the template of the model's file. */
  chat(prompts: readonly string[], tokens = TOKENS): Promise<number> {
    return this.#rate(prompts, tokens, (prompt, options) =>
      this.models.chat("m", [{ role: "user", content: prompt }], options),
    );
  }

  async #rate(
    prompts: readonly string[],
    tokens: number,
    start: (prompt: string, options: Greedy) => Promise<GenerateResult>,
  ): Promise<number> {
    // nothing is reused from one round in the next: the others begin anew as well
    const scope = `round ${this.#rounds++}`;
    const began = performance.now();
    const results = await Promise.all(
      prompts.map((prompt, index) =>
        start(prompt, { maxTokens: tokens, temperature: 0, scope: `${scope}, stream ${index}` }),
      ),
    );
    const seconds = (performance.now() - began) / 1000;
    for (const { usage } of results) {
      if (usage.completionTokens !== tokens || usage.cachedTokens !== 0)
        throw new Error(`${tokens} fresh tokens were wanted: ${JSON.stringify(usage)}`);
    }
    return (prompts.length * tokens) / seconds;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.models.close();
  }
}

interface Greedy {
  readonly maxTokens: number;
  readonly temperature: 0;
  readonly scope: string;
}
