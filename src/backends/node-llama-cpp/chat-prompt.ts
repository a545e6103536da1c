/** From a conversation to tokens, in the format that the model was trained on, and what ends the model's turn. */
import type { BuiltInChatWrapperType, ChatHistoryItem, LlamaModel, Token } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";
import type { ChatMessage } from "../../inference.js";
import type { GgufModel } from "./gguf-file.js";
import { checkText } from "./sampling.js";
import type { StopText } from "./text.js";

/** What a request is evaluated from. */
export interface Prompt {
  readonly tokens: Token[];
  /** The text goes on where the tokens end; else it begins anew, and then without the space that tokenizers put first. */
  readonly isContinued: boolean;
  /** Tokens that end the text like the model's own end token does. */
  readonly stopTokens: ReadonlySet<Token>;
  /** The same as text, where the vocabulary has no token for it. */
  readonly stopTexts: readonly StopText[];
}

/**
 * The chat formats that have been found out, by file. It takes the library 0.2 s, in which nothing else happens in the
 * process: so it is not done before a chat asks for it, and once for all lives of a model.
 */
const formats = new WeakMap<GgufModel, BuiltInChatWrapperType>();

/** Makes the prompts of one live model. */
export class PromptMaker {
  readonly #file: GgufModel;
  readonly #model: LlamaModel;
  #format: BuiltInChatWrapperType | undefined;

  constructor(file: GgufModel, model: LlamaModel) {
    this.#file = file;
    this.#model = model;
  }

  async #chatFormat(): Promise<BuiltInChatWrapperType> {
    const { resolveChatWrapper, JinjaTemplateChatWrapper } = await import("node-llama-cpp");
    this.#format ??= formats.get(this.#file) ?? resolveChatWrapper(this.#model, { warningLogs: false });
    // This one keeps the tokenizer of the live model, which will be gone in its next life.
    if (!(this.#format instanceof JinjaTemplateChatWrapper)) formats.set(this.#file, this.#format);
    return this.#format;
  }

  /** Text to continue. It begins with the model's begin token if the model wants one, as in the bare library. */
  fromText(prompt: string): Prompt {
    checkText("prompt", prompt);
    const { bos, shouldPrependBosToken } = this.#model.tokens;
    const tokens = this.#model.tokenize(prompt);
    if (bos !== null && shouldPrependBosToken && tokens[0] !== bos) tokens.unshift(bos);
    if (tokens.length === 0)
      throw new InvalidOptionError("prompt", "a text that is not empty: this model has no token to begin with", prompt);
    return { tokens, isContinued: true, stopTokens: NO_TOKENS, stopTexts: [] };
  }

  /** A conversation for the model to answer; if the last message is the assistant's, the model goes on with it. */
  async fromMessages(messages: readonly ChatMessage[]): Promise<Prompt> {
    if (messages.length === 0) throw new InvalidOptionError("messages", "at least one message", messages);
    for (const { content } of messages) checkText("messages", content);
    const format = await this.#chatFormat();
    const isContinued = messages.at(-1)?.role === "assistant";
    const chatHistory = messages.map(historyItem);
    if (!isContinued) chatHistory.push({ type: "model", response: [""] });

    const { contextText, stopGenerationTriggers } = format.generateContextState({ chatHistory });
    const stopTokens = new Set<Token>();
    const stopTexts: StopText[] = [];
    for (const trigger of stopGenerationTriggers) {
      const [token, ...more] = trigger.tokenize(this.#model.tokenizer);
      if (token === undefined) continue;
      const isText = trigger.values.every((value) => typeof value === "string");
      if (more.length === 0 && !isText) stopTokens.add(token);
      else stopTexts.push({ text: trigger.values.map(String).join(""), byUser: false });
    }
    return { tokens: contextText.tokenize(this.#model.tokenizer), isContinued, stopTokens, stopTexts };
  }
}

const NO_TOKENS: ReadonlySet<Token> = new Set();

function historyItem({ role, content }: ChatMessage): ChatHistoryItem {
  if (role === "assistant") return { type: "model", response: [content] };
  return { type: role, text: content };
}
