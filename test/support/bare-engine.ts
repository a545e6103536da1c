/** The engine alone, without this library: for tests of model files. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { getLlama, LlamaChatSession, LlamaLogLevel, type Llama, type LlamaModel } from "node-llama-cpp";
import { afterAll, beforeAll } from "vitest";

let engine: Promise<Llama> | undefined;

/** One engine per process, with one thread: more of them slow small models down by orders of magnitude. */
export function bareEngine(): Promise<Llama> {
  engine ??= getLlama({ build: "never", gpu: false, maxThreads: 1, logLevel: LlamaLogLevel.disabled });
  return engine;
}

/** Loads a model for as long as `use` takes. */
export async function withModel<Result>(file: string, use: (model: LlamaModel) => Promise<Result>): Promise<Result> {
  const model = await (await bareEngine()).loadModel({ modelPath: file });
  try {
    return await use(model);
  } finally {
    await model.dispose();
  }
}

/** What follows a prompt, greedy, until the model ends or `maxTokens` are there. */
export async function complete(model: LlamaModel, prompt: string, maxTokens = 200): Promise<string> {
  const context = await model.createContext({ contextSize: 512 });
  const start = model.tokens.bos === null ? [] : [model.tokens.bos];
  const tokens = [];
  for await (const token of context.getSequence().evaluate([...start, ...model.tokenize(prompt)], { temperature: 0 })) {
    tokens.push(token);
    if (tokens.length === maxTokens) break;
  }
  await context.dispose();
  return model.detokenize(tokens);
}

/** The answers to messages of one conversation. */
export async function chat(model: LlamaModel, messages: readonly string[], maxTokens = 200): Promise<string[]> {
  const context = await model.createContext({ contextSize: 1024 });
  const session = new LlamaChatSession({ contextSequence: context.getSequence() });
  const answers = [];
  for (const message of messages) answers.push(await session.prompt(message, { maxTokens, temperature: 0 }));
  await context.dispose();
  return answers;
}

/** Cosine of the angle between the vectors of two texts. */
export async function similarity(model: LlamaModel, one: string, other: string): Promise<number> {
  const context = await model.createEmbeddingContext({ contextSize: 256 });
  const a = await context.getEmbeddingFor(one);
  const b = await context.getEmbeddingFor(other);
  await context.dispose();
  return a.calculateCosineSimilarity(b);
}

/** A folder for the tests of one file; returns the path of a name in it. */
export function useTemporaryFolder(): (name: string) => string {
  let folder = "";
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "model-supervisor-"));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));
  return (name) => join(folder, name);
}
