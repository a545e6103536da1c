/** Token ids that callers give. One outside the vocabulary would abort the process, so all are checked here first. */
import type { LlamaModel, Token, TokenBias } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";

/** The bias that stands for "never". */
const BAN = -100;

/** @throws InvalidOptionError for an id that is none of this model. */
export function checkTokenIds(model: LlamaModel, option: string, ids: readonly number[]): readonly Token[] {
  const size = model.fileInfo.metadata.tokenizer?.ggml?.tokens?.length ?? 0;
  const isToken = (id: number): id is Token => Number.isInteger(id) && id >= 0 && id < size;
  if (ids.every(isToken)) return ids;
  const wrong = ids.find((id) => !isToken(id));
  throw new InvalidOptionError(option, `whole numbers from 0 to ${size - 1}, the vocabulary of this model`, wrong);
}

/**
 * The engine's form of logit biases.
 * @throws InvalidOptionError for what it would ignore, or die of.
 */
export async function tokenBiasOf(
  model: LlamaModel,
  biases: readonly (readonly [token: number, bias: number])[],
): Promise<TokenBias> {
  const option = "logitBias";
  const tokens = checkTokenIds(
    model,
    option,
    biases.map(([token]) => token),
  );
  const { TokenBias: Bias } = await import("node-llama-cpp");
  const tokenBias = Bias.for(model);
  for (const [index, token] of tokens.entries()) {
    const bias = biases[index]?.[1] ?? Number.NaN;
    if (!(bias >= BAN && bias <= -BAN)) throw new InvalidOptionError(option, `numbers from ${BAN} to ${-BAN}`, bias);
    if (model.isEogToken(token))
      throw new InvalidOptionError(option, "no token that ends a text, which the engine would not bias", token);
    tokenBias.set(token, bias === BAN ? "never" : { logit: bias });
  }
  return tokenBias;
}
