/**
 * Makes small GGUF models for tests, in milliseconds and without a download: models that recite, recall, embed and rank in
 * known ways, random ones of any size, and damaged files. Every maker writes under a temporary name and renames.
 *
 * @example
 * ```ts
 * const [file] = await makeRecitingModel(join(folder, "hello.gguf"), { text: "Hello world." });
 * await models.load("chat", file);
 * (await models.generate("chat", "Say something")).text; // "Hello world."
 * ```
 */
export { makeRandomModel, randomModelPresets, type RandomModelOptions, type RandomModelShape } from "./llama-model.js";
export { makeRecitingModel, type RecitingModelOptions } from "./reciting-model.js";
export { makeRecallModel, recallKeys, type RecallModelOptions } from "./recall-model.js";
export { embeddingModelPresets, makeEmbeddingModel, type EmbeddingModelOptions } from "./bert-model.js";
export { makeRankingModel, type RankingModelOptions } from "./ranking-model.js";
export { corruptFile, corruptions, type Corruption } from "./corrupt.js";
export type { FileOptions, WrittenFiles } from "./gguf-writer.js";
export type { NumberFormat } from "./number-formats.js";
