/** From a conversation to tokens, in the format that the model was trained on, and what ends the model's turn. */
import type { BuiltInChatWrapperType, ChatHistoryItem, LlamaModel, Token } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";
import type { ChatMessage } from "../../inference.js";
import { checkText } from "./sampling.js";
import type { StopText } from "./text.js";

/** What a request is evaluated from. */
export interface Prompt {
  readonly tokens: Token[];
  /** Tokens that end the text like the model's own end token does. */
  readonly stopTokens: ReadonlySet<Token>;
  /** The same as text, where the vocabulary has no token for it. */
  readonly stopTexts: readonly StopText[];
}

/** Makes the prompts of one model. */
export class PromptMaker {
  readonly #model: LlamaModel;
  #wrapper: Promise<BuiltInChatWrapperType> | undefined;

  constructor(model: LlamaModel) {
    this.#model = model;
  }

  /** Text to continue. It begins with the model's begin token if the model wants one, as in the bare library. */
  fromText(prompt: string): Prompt {
    checkText("prompt", prompt);
    const { bos, shouldPrependBosToken } = this.#model.tokens;
    const tokens = this.#model.tokenize(prompt);
    if (bos !== null && shouldPrependBosToken && tokens[0] !== bos) tokens.unshift(bos);
    if (tokens.length === 0) throw new InvalidOptionError("prompt", "a text that is not empty: this model has no token to begin with", prompt);
    return { tokens, stopTokens: NO_TOKENS, stopTexts: [] };
  }

  /** A conversation for the model to answer; if the last message is the assistant's, the model goes on with it. */
  async fromMessages(messages: readonly ChatMessage[]): Promise<Prompt> {
    if (messages.length === 0) throw new InvalidOptionError("messages", "at least one message", messages);
    for (const { content } of messages) checkText("messages", content);
    // Kept while it is made, so that a burst of first chats makes one; a failure is not kept.
    this.#wrapper ??= import("node-llama-cpp").then(({ resolveChatWrapper }) => resolveChatWrapper(this.#model, { warningLogs: false }));
    const wrapper = await this.#wrapper.catch((error: unknown) => {
      this.#wrapper = undefined;
      throw error;
    });
    const chatHistory = messages.map(historyItem);
    if (messages.at(-1)?.role !== "assistant") chatHistory.push({ type: "model", response: [""] });

    const { contextText, stopGenerationTriggers } = wrapper.generateContextState({ chatHistory });
    const stopTokens = new Set<Token>();
    const stopTexts: StopText[] = [];
    for (const trigger of stopGenerationTriggers) {
      const [token, ...more] = trigger.tokenize(this.#model.tokenizer);
      if (token === undefined) continue;
      const isText = trigger.values.every((value) => typeof value === "string");
      if (more.length === 0 && !isText) stopTokens.add(token);
      else stopTexts.push({ text: trigger.values.map(String).join(""), byUser: false });
    }
    return { tokens: contextText.tokenize(this.#model.tokenizer), stopTokens, stopTexts };
  }
}

const NO_TOKENS: ReadonlySet<Token> = new Set();

function historyItem({ role, content }: ChatMessage): ChatHistoryItem {
  if (role === "assistant") return { type: "model", response: [content] };
  return { type: role, text: content };
}
