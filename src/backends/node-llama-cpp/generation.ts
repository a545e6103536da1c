/** From a prompt and the caller's options to a job for a slot. */
import type { LlamaModel, Token, TokenBias } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";
import type { BackingRequest, Sampling } from "../backend.js";
import type { Prompt } from "./chat-prompt.js";
import { allowedTokens, checkText, engineSampling, PUNISHED_TOKENS } from "./sampling.js";
import type { Job } from "./slot-run.js";
import type { TurnReader } from "./turn-reader.js";
import type { Structure } from "./structured-output.js";

export interface GenerationCall {
  readonly modelId: string;
  readonly contextSize: number;
  readonly prompt: Prompt;
  readonly sampling: Sampling;
  /** Made from the sampling's `jsonSchema` or `grammar`. */
  readonly structure: Structure | undefined;
  /** Made from the sampling's `logitBias`. */
  readonly tokenBias?: TokenBias | undefined;
  /** Made from the prompt's `turn`. */
  readonly reader: TurnReader | undefined;
  readonly request: BackingRequest;
  readonly signal: AbortSignal;
  readonly submittedAt: number;
}

/** @throws ContextLengthExceededError, InvalidOptionError */
export function makeJob(model: LlamaModel, call: GenerationCall): Job {
  const { prompt, sampling, structure, tokenBias, reader } = call;
  for (const stop of sampling.stop) {
    if (stop === "") throw new InvalidOptionError("stop", "strings that are not empty", stop);
    checkText("stop", stop);
  }
  const punishable = sampling.repeatPenalty === 1 ? [] : punishableTokens(model, prompt.tokens);
  return {
    request: call.request,
    signal: call.signal,
    submittedAt: call.submittedAt,
    tokens: prompt.tokens,
    scope: call.request.scope ?? "",
    textBefore: prompt.isContinued || structure !== undefined ? prompt.tokens : [],
    maxTokens: allowedTokens(call.modelId, sampling, prompt.tokens.length, call.contextSize),
    // With a grammar the text ends where the grammar does; before that, an end of turn is a part of the text.
    stopTokens: structure === undefined ? prompt.stopTokens : new Set(),
    stopTexts: [
      ...sampling.stop.map((text) => ({ text, byUser: true })),
      // a reader looks for these itself, in reasoning as well
      ...(structure === undefined && reader === undefined ? prompt.stopTexts : []),
    ],
    sampling: {
      ...engineSampling(sampling, punishable),
      ...(tokenBias && { tokenBias }),
      ...(structure && { grammarEvaluationState: structure.state }),
      ...(reader && { grammarEvaluationState: () => reader.grammars.state }),
    },
    topLogprobs: sampling.topLogprobs,
    structure: structure && (structure.isJson ? "json" : "grammar"),
    punishable,
    reader,
    truncatedTokens: prompt.truncatedTokens,
  };
}

/** Without the special tokens: a chat's prompt is full of those that end a turn, and this turn must end as well. */
function punishableTokens(model: LlamaModel, tokens: readonly Token[]): Token[] {
  return tokens.slice(-PUNISHED_TOKENS).filter((token) => !model.isSpecialToken(token));
}
