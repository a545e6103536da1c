/** A conversation in a format, as tokens. */
import type { ChatModelFunctions, LlamaModel, LlamaText, Token } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";
import type { ChatMessage, ToolDefinition } from "../../inference.js";
import { reasonOf, TEMPLATE_LIMIT_MS, type ChatFormat } from "./chat-format.js";
import { chatHistory } from "./chat-history.js";
import { checkJsonSchema } from "./json-schema.js";
import { withinTime } from "./within-time.js";

export interface RenderOptions {
  readonly tools: readonly ToolDefinition[];
  /** The model's turn begins; else it goes on with what the last message says. */
  readonly isNew: boolean;
  /** A grammar makes the answer, so a thought that begins by itself is ended at once. */
  readonly isStructured: boolean;
  readonly enableThinking: boolean | undefined;
  /** Throws for a text that must not be tokenized. */
  readonly check: (text: string) => void;
}

export interface Rendered {
  readonly tokens: Token[];
  /** What ends the model's turn. */
  readonly ends: readonly LlamaText[];
  /** The format has rules of its own for what the model may begin with. */
  readonly isSpecial: boolean;
}

/** @throws InvalidOptionError of `messages` if the format's template refuses them. */
export function render(
  format: ChatFormat,
  model: LlamaModel,
  messages: readonly ChatMessage[],
  options: RenderOptions,
): Rendered {
  const { tools } = options;
  const thinks = format.settings.segments?.thought !== undefined;
  let state: ReturnType<ChatFormat["generateContextState"]>;
  try {
    state = withinTime(TEMPLATE_LIMIT_MS, () =>
      format.generateContextState({
        chatHistory: chatHistory(messages, thinks),
        ...(tools.length > 0 && { availableFunctions: functionsOf(tools) }),
      }),
    );
  } catch (cause) {
    throw new InvalidOptionError(
      "messages",
      `a conversation that this model's chat template takes (${reasonOf(cause)})`,
      messages.map(({ role }) => role).join(", "),
    );
  }
  // as a whole: what is harmless in each message may not be in a row with what the template writes around it
  for (const value of state.contextText.values) options.check(typeof value === "string" ? value : value.value);
  const opening = openingMarks(format, state.contextText, options);
  const tokens = [state.contextText, ...opening].flatMap((text) =>
    typeof text === "string" ? model.tokenize(text) : text.tokenize(model.tokenizer),
  );
  const isSpecial = "prefixTriggers" in state || "noPrefixTrigger" in state || state.functionCall !== undefined;
  return { tokens, ends: state.stopGenerationTriggers, isSpecial };
}

/**
 * What the prompt has after the format's own text: a thought that the model's turn always begins with, or an empty one, so
 * that there will be none. The library writes those of the formats that it knows, and no template's.
 */
function openingMarks(format: ChatFormat, context: LlamaText, options: RenderOptions): (string | LlamaText)[] {
  const { thought } = format.settings.segments ?? {};
  const { prefix, suffix } = thought ?? {};
  if (!options.isNew || prefix === undefined || suffix === undefined) return [];
  if (typeof prefix === "object" && "type" in prefix) return [];
  const opens = thought?.openOnResponseStart === true;
  const isClosed = context.toString().trimEnd().endsWith(String(suffix).trim());
  if (options.enableThinking === false && format.wrapperName === "JinjaTemplate")
    return isClosed ? [] : [prefix, suffix];
  if (!opens) return [];
  return options.isStructured ? [prefix, suffix] : [prefix];
}

function functionsOf(tools: readonly ToolDefinition[]): ChatModelFunctions {
  return Object.fromEntries(
    tools.map(({ name, description, parameters }) => [
      name,
      {
        ...(description !== undefined && { description }),
        ...(parameters !== undefined && { params: checkJsonSchema(parameters).schema }),
      },
    ]),
  );
}
