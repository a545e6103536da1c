/** What a model can do and how it must be run, read from its header. */
import type { GgufFileInfo } from "node-llama-cpp";
import { InvalidModelFileError } from "../../errors.js";
import type { Capability } from "../../model.js";

export interface ModelFacts {
  readonly supports: readonly Capability[];
  readonly defaultCapabilities: readonly Capability[];
  readonly trainedContextSize: number;
  readonly embedsInOneBatch: boolean;
  readonly positionsAreBounded: boolean;
}

/** Models that read a text as a whole and produce none. */
const ENCODERS = /bert|^t5encoder$|^gemma-embedding$/;
/** What is in a GGUF file, but is no language model on its own. */
const NOT_MODELS = new Map([
  ["clip", "it is the image or audio projector of a multimodal model, not a language model"],
  ["t5", "encoder-decoder models cannot be run by this engine"],
]);
/** `pooling_type` of llama.cpp under which every ubatch is its own text: mean, cls, rank. */
const POOLS_OVER_TEXT = new Set([1, 2, 4]);
const FALLBACK_CONTEXT_SIZE = 4096;

/** @throws InvalidModelFileError if no model of this kind can be run. */
export function factsOf(info: GgufFileInfo, file: string): ModelFacts {
  const architecture: string = info.metadata.general?.architecture ?? "";
  const reason = NOT_MODELS.get(architecture);
  if (reason !== undefined) throw new InvalidModelFileError(file, reason);

  const facts = info.architectureMetadata;
  const tensors = info.fullTensorInfo ?? [];
  const pooling: number = facts.pooling_type ?? 0;
  const isEncoder = ENCODERS.test(architecture) || facts.attention?.causal === false;
  const ranks = tensors.some(({ name }) => name === "cls.weight" || name === "cls.output.weight");
  const trained = Number(facts.context_length);
  return {
    ...capabilities(isEncoder, ranks, pooling !== 0),
    trainedContextSize: trained > 0 ? trained : FALLBACK_CONTEXT_SIZE,
    embedsInOneBatch: isEncoder || ranks || POOLS_OVER_TEXT.has(pooling),
    positionsAreBounded: tensors.some(({ name }) => name === "position_embd.weight"),
  };
}

/** A generative file that says how to pool was made to embed, whatever else it can do. */
function capabilities(
  isEncoder: boolean,
  ranks: boolean,
  pools: boolean,
): Pick<ModelFacts, "supports" | "defaultCapabilities"> {
  if (ranks) return { supports: ["rank"], defaultCapabilities: ["rank"] };
  if (isEncoder) return { supports: ["embed"], defaultCapabilities: ["embed"] };
  return { supports: ["generate", "chat", "embed"], defaultCapabilities: pools ? ["embed"] : ["generate", "chat"] };
}
