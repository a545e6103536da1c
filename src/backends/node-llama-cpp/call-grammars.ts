/** What a model may say within a tool call: the grammars of one chat, and which of them holds now. */
import type { LlamaGrammar, LlamaGrammarEvaluationState, LlamaModel } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";
import type { ToolDefinition } from "../../inference.js";
import type { TurnRules } from "./chat-turn.js";
import { checkJsonSchema } from "./json-schema.js";
import { fixedGrammar, grammarOfSchema } from "./structured-output.js";
import { behindName, type CallKind, type CallSyntax, type TurnFormat } from "./turn-marks.js";

/** White space between the marks of a call. */
const SPACE = "[ \\n]{0,4}";

export interface ChatTools {
  readonly tools: readonly ToolDefinition[];
  /** The turn must begin with a call, after the reasoning if there is any. */
  readonly isForced: boolean;
}

/** A grammar state that can be put in front of each sampled token; `undefined` lets the model say anything. */
export class CallGrammars implements TurnRules {
  readonly #model: LlamaModel;
  readonly #newState: (grammar: LlamaGrammar) => LlamaGrammarEvaluationState;
  /** By tool, then by syntax. */
  readonly #calls: readonly (readonly LlamaGrammar[])[];
  /** How a forced turn begins; until its first call is open. */
  #opening: LlamaGrammar | undefined;
  #state: LlamaGrammarEvaluationState | undefined;

  private constructor(
    model: LlamaModel,
    newState: (grammar: LlamaGrammar) => LlamaGrammarEvaluationState,
    calls: readonly (readonly LlamaGrammar[])[],
    opening: LlamaGrammar | undefined,
  ) {
    this.#model = model;
    this.#newState = newState;
    this.#calls = calls;
    this.#opening = opening;
  }

  /** Compiles whatever may be needed. @throws InvalidOptionError of `tools.<index>.parameters`. */
  static async make(model: LlamaModel, format: TurnFormat, { tools, isForced }: ChatTools): Promise<CallGrammars> {
    const { LlamaGrammarEvaluationState } = await import("node-llama-cpp");
    const compile = ({ parameters }: ToolDefinition, index: number) =>
      Promise.all(format.calls.map((syntax) => argumentsGrammar(model, syntax, parameters, optionOf(index))));
    const [calls, opening] = await Promise.all([
      Promise.all(tools.map(compile)),
      isForced ? openingGrammar(model, format, tools) : undefined,
    ]);
    const newState = (grammar: LlamaGrammar) => new LlamaGrammarEvaluationState({ model, grammar });
    const grammars = new CallGrammars(model, newState, calls, opening);
    if (format.thought?.isOpen !== true) grammars.#force();
    return grammars;
  }

  get state(): LlamaGrammarEvaluationState | undefined {
    return this.#state;
  }

  openCall({ tool, syntax }: CallKind, after: string): boolean {
    const grammar = this.#calls[tool]?.[syntax];
    if (grammar === undefined) return false;
    const state = this.#newState(grammar);
    if (!feed(this.#model, state, after)) return false;
    this.#opening = undefined;
    this.#state = state;
    return true;
  }

  closeCall(): void {
    this.#state = undefined;
  }

  openThought(): void {
    this.#state = undefined;
  }

  closeThought(): void {
    this.#force();
  }

  #force(): void {
    this.#state = this.#opening && this.#newState(this.#opening);
  }
}

/**
 * Checks the schemas before anything runs.
 * @throws InvalidOptionError
 */
export function checkTools(tools: readonly ToolDefinition[]): void {
  for (const [index, { parameters }] of tools.entries()) {
    if (parameters === undefined) continue;
    const type: unknown = Reflect.get(parameters, "type");
    if (type !== "object")
      throw new InvalidOptionError(`${optionOf(index)}.type`, '"object", for arguments have names', type);
    checkJsonSchema(parameters, optionOf(index));
  }
}

function optionOf(index: number): string {
  return `tools.${index}.parameters`;
}

/** What follows a call's opening, up to its end, so that no end of turn can come before. */
function argumentsGrammar(
  model: LlamaModel,
  syntax: CallSyntax,
  parameters: ToolDefinition["parameters"],
  option: string,
): Promise<LlamaGrammar> {
  const open = `${SPACE} ${spaced(behindName(syntax).rest)} ${SPACE}`;
  // a token may end behind the call, with white space
  const close = `${spaced(syntax.suffix)} ${SPACE}`;
  if (parameters === undefined) return fixedGrammar(model.llama, `${open} ("{" ${SPACE} "}")? ${close}`);
  const frame = (root: string) => `${open} ${root} ${close}`;
  return grammarOfSchema(model.llama, checkJsonSchema(parameters, option), option, frame);
}

/** A call of one of the tools up to the end of its name, or a thought before it. */
function openingGrammar(
  model: LlamaModel,
  format: TurnFormat,
  tools: readonly ToolDefinition[],
): Promise<LlamaGrammar> {
  const [syntax] = format.calls;
  if (syntax === undefined) throw new TypeError("A format without calls cannot be made to call");
  const names = tools.map(({ name }) => literal(name)).join(" | ");
  const { section, prefix, paramsPrefix } = syntax;
  const { delimiter } = behindName(syntax);
  const end = delimiter === "" ? literal(paramsPrefix) : spaced(delimiter);
  const call = `${spaced(section + prefix)} (${names}) ${end}`;
  const thought = format.thought?.open === undefined ? "" : ` | ${spaced(format.thought.open.trimEnd())}`;
  return fixedGrammar(model.llama, `${SPACE} (${call}${thought})`);
}

/** The text, with any white space where it has some. */
function spaced(text: string): string {
  return text
    .split(/(\s+)/)
    .filter((part) => part !== "")
    .map((part) => (part.trim() === "" ? SPACE : literal(part)))
    .join(" ");
}

function literal(text: string): string {
  return JSON.stringify(text);
}

/** What is used of the library's sampler, which it does not export. */
interface NativeSampler {
  canBeNextTokenForGrammarEvaluationState(state: unknown, token: number): boolean;
  acceptGrammarEvaluationStateToken(state: unknown, token: number): void;
}

/**
 * Text that has been said already, because it came in one token with what stands before it. False if the grammar does
 * not begin so; a token that does not fit must not reach the native state, which would throw.
 * @throws TypeError if the library keeps its native parts in another place than it did.
 */
function feed(model: LlamaModel, state: LlamaGrammarEvaluationState, text: string): boolean {
  if (text.trim() === "") return true; // white space may stand before arguments in any case
  const sampler = nativeSampler(model);
  const native: unknown = Reflect.get(state, "_state");
  for (const token of model.tokenize(text, false, "trimLeadingSpace")) {
    if (!sampler.canBeNextTokenForGrammarEvaluationState(native, token)) return false;
    sampler.acceptGrammarEvaluationStateToken(native, token);
  }
  return true;
}

function nativeSampler(model: LlamaModel): NativeSampler {
  const bindings: unknown = Reflect.get(model.llama, "_bindings");
  const sampler: unknown = isObject(bindings) ? Reflect.get(bindings, "AddonSampler") : undefined;
  if (isNativeSampler(sampler)) return sampler;
  throw new TypeError("The library keeps its sampler in another place than expected");
}

function isNativeSampler(value: unknown): value is NativeSampler {
  return (
    isObject(value) &&
    typeof Reflect.get(value, "canBeNextTokenForGrammarEvaluationState") === "function" &&
    typeof Reflect.get(value, "acceptGrammarEvaluationStateToken") === "function"
  );
}

function isObject(value: unknown): value is object {
  return (typeof value === "object" && value !== null) || typeof value === "function";
}
