/** The chat format of a file: which one it is, how it writes reasoning and tool calls, and how it does without reasoning. */
import type {
  BuiltInChatWrapperType,
  ChatWrapperSettings,
  JinjaTemplateChatWrapper,
  JinjaTemplateChatWrapperOptions,
  LlamaModel,
  LlamaText,
  ResolveChatWrapperWithModelOptions,
} from "node-llama-cpp";
import { InvalidModelFileError, InvalidOptionError } from "../../errors.js";
import type { GgufModel } from "./gguf-file.js";
import type { CallSyntax, TurnFormat } from "./turn-marks.js";
import { isOutOfTime, withinTime } from "./within-time.js";

export type ChatFormat = BuiltInChatWrapperType;

/** A template takes some milliseconds. */
export const TEMPLATE_LIMIT_MS = 2000;
const SEARCH_LIMIT_MS = 60_000;

/** Where Jinja2 takes an undefined list for an empty one, the library's engine fails. */
const LENIENT = { additionalRenderParameters: { tools: [], documents: [] } };
/** Formats that are known by more than the marks that many share, so that the file's template is not needed. */
const KNOWN_FORMATS: ReadonlySet<string> = new Set(["Seed", "Functionary", "Harmony", "Muse", "Gemma 4", "Mistral"]);

/**
 * The chat formats that have been found out, by file. It takes the library 0.2 to 1 s, in which nothing else happens in
 * the process: so it is not done before a chat asks for it, and once for all lives of a model. A template that is run as
 * it is keeps the tokenizer of a live model, which will be gone in its next life; that one is made anew, which takes 5 ms.
 */
const formats = new WeakMap<GgufModel, ChatFormat | Template | InvalidModelFileError>();

/**
 * What models of many formats were taught, whatever a prompt tells them. It is understood besides the library's own
 * syntax, which is for formats without any.
 */
const COMMON_CALL: CallSyntax = {
  section: "",
  prefix: '<tool_call>\n{"name": "',
  paramsPrefix: '", "arguments": ',
  suffix: "}\n</tool_call>",
  between: "\n",
  sectionEnd: "",
};

/** The library writes this channel's name into the prompt of later turns, but has no setting for it. */
const HARMONY_TEXT = ["<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"];

/** The formats of one live model. */
export class ChatFormats {
  readonly #file: GgufModel;
  readonly #model: LlamaModel;
  #usual: ChatFormat | undefined;
  #unthinking: ChatFormat | undefined;

  constructor(file: GgufModel, model: LlamaModel) {
    this.#file = file;
    this.#model = model;
  }

  /** @throws InvalidModelFileError if the file's template cannot be used, InvalidOptionError of `enableThinking` */
  async get(enableThinking: boolean | undefined): Promise<ChatFormat> {
    const usual = await this.#usualFormat();
    const thinks = usual.settings.segments?.thought !== undefined;
    if (enableThinking === true && !thinks)
      throw new InvalidOptionError("enableThinking", "no true: this model's chat format knows no reasoning", true);
    if (enableThinking !== false || !thinks) return usual;
    this.#unthinking ??= await withoutThinking(usual, this.#model);
    return this.#unthinking;
  }

  async #usualFormat(): Promise<ChatFormat> {
    this.#usual ??= await this.#find();
    return this.#usual;
  }

  async #find(): Promise<ChatFormat> {
    const { JinjaTemplateChatWrapper } = await import("node-llama-cpp");
    const known = formats.get(this.#file);
    if (known instanceof InvalidModelFileError) throw known;
    if (known !== undefined && "settings" in known) return known;
    try {
      const template = known ?? { template: this.#model.fileInfo.metadata.tokenizer?.chat_template ?? "" };
      const asItIs = template.template.trim() === "" ? undefined : await runTemplate(template, this.#model);
      if (known !== undefined && asItIs !== undefined) return asItIs;
      const found = await searchFormat(this.#model);
      formats.set(this.#file, found instanceof JinjaTemplateChatWrapper ? templateOf(found) : found);
      return found;
    } catch (cause) {
      const { path } = this.#file.files[0];
      const error = new InvalidModelFileError(path, `its chat template cannot be used (${reasonOf(cause)})`, cause);
      formats.set(this.#file, error);
      throw error;
    }
  }
}

/** A template that is run as it is. */
type Template = Pick<JinjaTemplateChatWrapperOptions, "template" | "additionalRenderParameters">;

function templateOf({ template, additionalRenderParameters }: JinjaTemplateChatWrapper): Template {
  return { template, ...(additionalRenderParameters !== undefined && { additionalRenderParameters }) };
}

/**
 * `undefined` if it cannot be run so, for the search has other ways to try. One that takes too long is an error here, since
 * the search would run it some hundred times.
 */
async function runTemplate(template: Template, { tokenizer }: LlamaModel): Promise<ChatFormat | undefined> {
  const { JinjaTemplateChatWrapper } = await import("node-llama-cpp");
  try {
    return withinTime(TEMPLATE_LIMIT_MS, () => new JinjaTemplateChatWrapper({ ...template, tokenizer }));
  } catch (error) {
    if (isOutOfTime(error)) throw error;
    return undefined;
  }
}

/** The library's own fallback is not used: it guesses by marks that broken templates have too, and says so on the console. */
async function searchFormat(model: LlamaModel): Promise<ChatFormat> {
  const { resolveChatWrapper } = await import("node-llama-cpp");
  const search = (options: ResolveChatWrapperWithModelOptions) =>
    withinTime(SEARCH_LIMIT_MS, () => resolveChatWrapper(model, { warningLogs: false, ...options }));
  const strictly = { fallbackToOtherWrappersOnJinjaError: false };
  try {
    return search(strictly);
  } catch (error) {
    if (isOutOfTime(error)) throw error;
    try {
      return search({ ...strictly, customWrapperSettings: { jinjaTemplate: LENIENT } });
    } catch {
      const found = search({ noJinja: true });
      if (KNOWN_FORMATS.has(found.wrapperName)) return found;
      throw error;
    }
  }
}

export function reasonOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).replaceAll(/\s+/g, " ").slice(0, 300);
}

async function withoutThinking(usual: ChatFormat, model: LlamaModel): Promise<ChatFormat> {
  const { Gemma4ChatWrapper, JinjaTemplateChatWrapper, QwenChatWrapper, SeedChatWrapper } =
    await import("node-llama-cpp");
  if (usual instanceof QwenChatWrapper) {
    const { keepOnlyLastThought, variation } = usual;
    return new QwenChatWrapper({ keepOnlyLastThought, variation, thoughts: "discourage" });
  }
  if (usual instanceof Gemma4ChatWrapper) return new Gemma4ChatWrapper({ reasoning: false });
  if (usual instanceof SeedChatWrapper) return new SeedChatWrapper({ thinkingBudget: 0 });
  if (usual instanceof JinjaTemplateChatWrapper && usual.template.includes("enable_thinking"))
    return new JinjaTemplateChatWrapper({ ...templateOf(usual), tokenizer: model.tokenizer, reasoning: false });
  throw new InvalidOptionError("enableThinking", "no false: this model's chat format has no way to say so", false);
}

/** How a turn is written in this format, as text. `isNew`: the prompt ends where a turn begins. */
export function turnFormat(
  { settings, wrapperName }: Pick<ChatFormat, "settings" | "wrapperName">,
  model: LlamaModel,
  ends: readonly string[],
  { isNew, hasTools }: { readonly isNew: boolean; readonly hasTools: boolean },
): TurnFormat {
  const { functions, segments } = settings;
  const thought = segments?.thought;
  const opensItself = thought !== undefined && !isMark(thought.prefix);
  const close = thought?.suffix ?? segments?.closeAllSegments;
  const calls = hasTools ? [callSyntax(settings, model)] : [];
  if (calls[0]?.prefix.startsWith("||call:") === true) calls.push(COMMON_CALL);
  return {
    ends,
    calls,
    isParallel: functions.parallelism !== undefined,
    ...(wrapperName === "Harmony" && { textMarks: HARMONY_TEXT }),
    thought:
      thought === undefined || close === undefined
        ? undefined
        : {
            open: isMark(thought.prefix) ? textOf(thought.prefix, model) : undefined,
            close: textOf(close, model),
            isOpen: isNew && (opensItself || thought.openOnResponseStart === true),
          },
  };
}

type Mark = string | LlamaText;

function isMark(prefix: Mark | { readonly type: "openedOnStart" }): prefix is Mark {
  return typeof prefix === "string" || !("type" in prefix) || prefix.type !== "openedOnStart";
}

function callSyntax({ functions: { call, parallelism } }: ChatWrapperSettings, model: LlamaModel): CallSyntax {
  const text = (mark: Mark | undefined) => (mark === undefined ? "" : beforeEnd(mark, model));
  return {
    section: text(parallelism?.call.sectionPrefix),
    prefix: text(call.prefix),
    paramsPrefix: text(call.paramsPrefix),
    suffix: text(call.suffix),
    between: text(parallelism?.call.betweenCalls),
    sectionEnd: text(parallelism?.call.sectionSuffix),
  };
}

function textOf(mark: Mark, model: LlamaModel): string {
  const parts = typeof mark === "string" ? mark : mark.toJSON();
  if (typeof parts === "string") return parts;
  const { bosString, eosString, eotString } = model.tokens;
  const builtin = new Map([
    ["BOS", bosString],
    ["EOS", eosString],
    ["EOT", eotString],
  ]);
  return parts
    .map((part) => {
      if (typeof part === "string") return part;
      return part.type === "specialToken" ? (builtin.get(part.value) ?? "") : part.value;
    })
    .join("");
}

/** The text up to a token that ends the model's turn, for that token is no text. */
function beforeEnd(mark: Mark, model: LlamaModel): string {
  const text = textOf(mark, model);
  if (typeof mark === "string") return text;
  const end = mark.tokenize(model.tokenizer).find((token) => model.isEogToken(token));
  const index = end === undefined ? -1 : text.indexOf(model.detokenize([end], true));
  return index === -1 ? text : text.slice(0, index);
}
