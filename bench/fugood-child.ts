/** The child of `fugood.ts`: the other library in its parallel mode. Answers each round with its tokens/s. */
import { createRequire } from "node:module";
import path from "node:path";

/** What is used of the other library, which has no place in this one's dependencies. */
interface Fugood {
  loadModel(options: Record<string, unknown>): Promise<{
    getSystemInfo(): string;
    readonly parallel: {
      enable(options: { readonly n_parallel: number; readonly n_batch: number }): Promise<boolean>;
      completion(options: Record<string, unknown>): Promise<{
        readonly promise: Promise<{ readonly tokens_predicted: number }>;
      }>;
    };
  }>;
}

/** A round, as the parent sends it. */
export interface Round {
  readonly prompts: readonly string[];
  readonly tokens: number;
}

const [folder = "", file = "", streams = "8", contextSize = "256"] = process.argv.slice(2);
const { loadModel } = createRequire(path.join(folder, "index.js"))("@fugood/llama.node") as Fugood;
const context = await loadModel({
  model: file,
  n_ctx: Number(streams) * Number(contextSize),
  n_batch: 512,
  n_parallel: Number(streams),
  n_threads: 1,
  n_gpu_layers: 0,
  // its advice for requests that share no beginning
  kv_unified: false,
});
const { parallel } = context;
if (!(await parallel.enable({ n_parallel: Number(streams), n_batch: 512 })))
  throw new Error("There is no parallel mode");

process.on("message", ({ prompts, tokens }: Round) => {
  void (async () => {
    const began = performance.now();
    const results = await Promise.all(
      prompts.map(async (prompt) => {
        const { promise } = await parallel.completion({ prompt, n_predict: tokens, temperature: 0, ignore_eos: true });
        return promise;
      }),
    );
    const seconds = (performance.now() - began) / 1000;
    const counts = results.map(({ tokens_predicted }) => tokens_predicted);
    process.send?.({ counts, rate: (prompts.length * tokens) / seconds });
  })();
});
process.send?.(context.getSystemInfo());
