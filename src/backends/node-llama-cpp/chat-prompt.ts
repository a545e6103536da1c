/** From a text or a conversation to tokens, in the format that the model was trained on, and what ends the model's turn. */
import type { LlamaModel, Token } from "node-llama-cpp";
import { ContextLengthExceededError, InvalidOptionError } from "../../errors.js";
import type { ChatMessage, ToolDefinition } from "../../inference.js";
import type { ChatSampling, Sampling } from "../backend.js";
import { checkTools, type ChatTools } from "./call-grammars.js";
import { ChatFormats, turnFormat, type ChatFormat } from "./chat-format.js";
import { render, type Rendered, type RenderOptions } from "./chat-render.js";
import type { GgufModel } from "./gguf-file.js";
import { cutTokens, promptRoom, shorterChats } from "./overflow.js";
import { checkText } from "./sampling.js";
import type { StopText } from "./text.js";
import type { TokenizerGuard } from "./tokenizer-guard.js";
import type { TurnFormat } from "./turn-marks.js";

/** What a request is evaluated from. */
export interface Prompt {
  readonly tokens: Token[];
  /** The text goes on where the tokens end; else it begins anew, and then without the space that tokenizers put first. */
  readonly isContinued: boolean;
  /** Tokens that end the text like the model's own end token does. */
  readonly stopTokens: ReadonlySet<Token>;
  /** The same as text, where the vocabulary has no token for it. */
  readonly stopTexts: readonly StopText[];
  /** Tokens that were left out because they did not fit. */
  readonly truncatedTokens: number;
  /** Of a chat in which text has to be told from reasoning or calls. */
  readonly turn?: ChatTools & { readonly format: TurnFormat };
}

/** Which model a prompt is for, and how much it holds. */
export interface PromptLimits {
  readonly modelId: string;
  readonly contextSize: number;
  /** Asked before any text is tokenized. */
  readonly guard: TokenizerGuard;
}

/** Makes the prompts of one live model. */
export class PromptMaker {
  readonly #model: LlamaModel;
  readonly #limits: PromptLimits;
  readonly #formats: ChatFormats;

  constructor(file: GgufModel, model: LlamaModel, limits: PromptLimits) {
    this.#model = model;
    this.#limits = limits;
    this.#formats = new ChatFormats(file, model);
  }

  /** Text to continue. It begins with the model's begin token if the model wants one, as in the bare library. */
  fromText(prompt: string, sampling: Sampling): Prompt {
    checkText("prompt", prompt);
    this.#limits.guard.check("prompt", prompt);
    const { bos, shouldPrependBosToken } = this.#model.tokens;
    const all = this.#model.tokenize(prompt);
    if (bos !== null && shouldPrependBosToken && all[0] !== bos) all.unshift(bos);
    if (all.length === 0)
      throw new InvalidOptionError("prompt", "a text that is not empty: this model has no token to begin with", prompt);
    const kept = all[0] === bos ? 1 : 0;
    const room = promptRoom(sampling, this.#limits.contextSize);
    const tokens = sampling.onOverflow === "truncate-oldest" ? cutTokens(all, room, kept) : all;
    return {
      tokens,
      isContinued: true,
      stopTokens: NO_TOKENS,
      stopTexts: [],
      truncatedTokens: all.length - tokens.length,
    };
  }

  /** A conversation for the model to answer; if the last message is the assistant's, the model goes on with it. */
  async fromMessages(messages: readonly ChatMessage[], sampling: ChatSampling): Promise<Prompt> {
    if (messages.length === 0) throw new InvalidOptionError("messages", "at least one message", messages);
    for (const { content } of messages) checkText("messages", content);
    const isStructured = (sampling.jsonSchema ?? sampling.grammar) !== undefined;
    if (isStructured && sampling.enableThinking === true)
      throw new InvalidOptionError("enableThinking", "no true beside jsonSchema or grammar", true);
    const tools = toolsOf(sampling);
    checkTools(tools);
    const format = await this.#formats.get(sampling.enableThinking);
    const isNew = messages.at(-1)?.role !== "assistant";
    const { tokens, ends, isSpecial, truncatedTokens } = this.#fit(format, messages, sampling, {
      tools,
      isNew,
      isStructured,
      enableThinking: sampling.enableThinking,
      check: (text) => this.#limits.guard.check("messages", text),
    });
    const stopTokens = new Set<Token>();
    const stopTexts: StopText[] = [];
    for (const trigger of ends) {
      const [token, ...more] = trigger.tokenize(this.#model.tokenizer);
      if (token === undefined) continue;
      const isText = trigger.values.every((value) => typeof value === "string");
      // templates write a line break after the token
      const isToken = more.length === 0 || this.#model.isSpecialToken(token);
      if (isToken && !isText && this.#model.detokenize(more).trim() === "") stopTokens.add(token);
      else stopTexts.push({ text: trigger.values.map(String).join(""), byUser: false });
    }
    const turn = turnFormat(
      format,
      this.#model,
      stopTexts.map(({ text }) => text),
      { isNew, hasTools: tools.length > 0 },
    );
    const cannotTell = isSpecial || turn.calls.every(({ section, prefix }) => (section + prefix).trim() === "");
    if (tools.length > 0 && cannotTell)
      throw new InvalidOptionError(
        "tools",
        `no tools: how this model's chat format (${format.wrapperName}) writes calls is not supported`,
        tools.length,
      );
    const isPlain = isStructured || (turn.thought === undefined && turn.calls.length === 0);
    const { toolChoice } = sampling;
    const isForced = tools.length > 0 && toolChoice !== undefined && toolChoice !== "auto";
    return {
      tokens,
      isContinued: !isNew,
      stopTokens,
      stopTexts,
      truncatedTokens,
      ...(!isPlain && { turn: { format: turn, tools: callable(tools, toolChoice), isForced } }),
    };
  }

  /** Without the oldest messages as far as that is needed and wanted. */
  #fit(format: ChatFormat, messages: readonly ChatMessage[], sampling: ChatSampling, options: RenderOptions) {
    const whole = render(format, this.#model, messages, options);
    const { modelId, contextSize } = this.#limits;
    const room = promptRoom(sampling, contextSize);
    if (sampling.onOverflow !== "truncate-oldest" || whole.tokens.length <= room)
      return { ...whole, truncatedTokens: 0 };
    const shorter = shorterChats(messages);
    // the longest that fits, looked for by halves: rendering takes time
    let [from, to] = [0, shorter.length];
    let best: Rendered | undefined;
    while (from < to) {
      const middle = (from + to) >> 1;
      const rendered = render(format, this.#model, shorter[middle] ?? messages, options);
      if (rendered.tokens.length <= room) [best, to] = [rendered, middle];
      else from = middle + 1;
    }
    if (best === undefined)
      throw new ContextLengthExceededError(modelId, contextSize, whole.tokens.length, sampling.maxTokens);
    return { ...best, truncatedTokens: whole.tokens.length - best.tokens.length };
  }
}

const NO_TOKENS: ReadonlySet<Token> = new Set();

function toolsOf({ tools = [], toolChoice }: ChatSampling): readonly ToolDefinition[] {
  return toolChoice === "none" ? [] : tools;
}

function callable(tools: readonly ToolDefinition[], choice: ChatSampling["toolChoice"]): readonly ToolDefinition[] {
  return typeof choice === "object" ? tools.filter(({ name }) => name === choice.name) : tools;
}
