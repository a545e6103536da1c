export { FakeBackend } from "./fake-backend.js";
export type { FakeBackendOptions, FakeModel, FakeStep } from "./fake-backend.js";
export type { FakeReply } from "./fake-reply.js";
export { Gate } from "./gate.js";
export {
  corruptFile,
  corruptions,
  embeddingModelPresets,
  makeEmbeddingModel,
  makeRandomModel,
  makeRankingModel,
  makeRecallModel,
  makeRecitingModel,
  randomModelPresets,
  recallKeys,
} from "./gguf/index.js";
export type {
  Corruption,
  EmbeddingModelOptions,
  FileOptions,
  NumberFormat,
  RandomModelOptions,
  RandomModelShape,
  RankingModelOptions,
  RecallModelOptions,
  RecitingModelOptions,
  WrittenFiles,
} from "./gguf/index.js";
export { SimulatedClock } from "./simulated-clock.js";
