/** Grammars that restrict what a model can say: checked, compiled once for an engine, with a state for each request. */
import type { Llama, LlamaGrammar, LlamaGrammarEvaluationState, LlamaModel } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";
import type { Sampling } from "../backend.js";
import { withEngineLog } from "./engine.js";
import { checkGrammar, grammarFault } from "./gbnf.js";
import { checkJsonSchema, type CheckedSchema } from "./json-schema.js";

/** Grammars kept, enough for all tools of two requests; the one that was not asked for the longest goes first. */
export const MAX_GRAMMARS = 256;
/** What a schema may become as GBNF. */
const MAX_GENERATED_BYTES = 1024 * 1024;

/** How a grammar begins. */
const ROOT = "root ::= ";
/** The library lets four line breaks follow the JSON, at which it stops by itself; here the end token must follow. */
const END_MARK = ' "\\n\\n\\n\\n" [\\n]*';
/** The library's numbers, integers too, may have an exponent: 1e-5 is none, and 1e9999 is read as Infinity. */
const EXPONENT = ' ([eE] [-+]? ("0" | [1-9] [0-9]{0,15}))?';

const compiled = new WeakMap<Llama, Map<string, Promise<LlamaGrammar>>>();

/** What a request with a grammar needs besides. */
export interface Structure {
  readonly state: LlamaGrammarEvaluationState;
  /** Output that is cut is closed to valid JSON. */
  readonly isJson: boolean;
}

/** @throws InvalidOptionError of `jsonSchema` or `grammar`. Nothing has run by then. */
export async function structureOf(model: LlamaModel, sampling: Sampling): Promise<Structure | undefined> {
  const { jsonSchema, grammar: text } = sampling;
  if (jsonSchema === undefined && text === undefined) return undefined;
  if (jsonSchema !== undefined && text !== undefined)
    throw new InvalidOptionError("grammar", "no grammar beside jsonSchema", text);
  const grammar = await (text === undefined ? ofSchema(model.llama, jsonSchema) : ofText(model.llama, text));
  const { LlamaGrammarEvaluationState } = await import("node-llama-cpp");
  return { state: new LlamaGrammarEvaluationState({ model, grammar }), isJson: text === undefined };
}

function ofText(llama: Llama, text: string): Promise<LlamaGrammar> {
  checkGrammar(text);
  return kept(llama, `grammar ${text}`, () =>
    compile("grammar", text, "a GBNF grammar", () => llama.createGrammar({ grammar: text })),
  );
}

function ofSchema(llama: Llama, jsonSchema: unknown): Promise<LlamaGrammar> {
  return grammarOfSchema(llama, checkJsonSchema(jsonSchema), "jsonSchema", (root) => root);
}

/**
 * The grammar of a checked schema. `frame` makes its first rule from what the library wrote as one.
 * @throws InvalidOptionError of the option that the schema came with.
 */
export function grammarOfSchema(
  llama: Llama,
  { schema, text }: CheckedSchema,
  option: string,
  frame: (root: string) => string,
): Promise<LlamaGrammar> {
  // the frame is a part of the key; `x` stands for what depends on the schema
  return kept(llama, `schema ${frame("x")} ${text}`, () =>
    compile(option, text, "a JSON schema", async () => {
      const made = await llama.createGrammarForJsonSchema(schema);
      const [root = "", ...rules] = made.grammar.split("\n");
      if (!root.startsWith(ROOT) || !root.endsWith(END_MARK))
        throw new TypeError("The library writes its grammars in another way than expected");
      const content = frame(root.slice(ROOT.length, -END_MARK.length));
      const grammar = [ROOT + content, ...rules].join("\n").replaceAll(EXPONENT, "");
      const fault = grammarFault(grammar, MAX_GENERATED_BYTES);
      if (fault !== undefined) throw new InvalidOptionError(option, `a schema that makes ${fault}`, text);
      return llama.createGrammar({ grammar });
    }),
  );
}

/** A grammar of our own. */
export function fixedGrammar(llama: Llama, root: string): Promise<LlamaGrammar> {
  return kept(llama, `fixed ${root}`, () => llama.createGrammar({ grammar: ROOT + root }));
}

/** The engine says why in its log, and what it says becomes part of the error. */
async function compile(
  option: string,
  text: string,
  expected: string,
  make: () => Promise<LlamaGrammar>,
): Promise<LlamaGrammar> {
  try {
    return await withEngineLog("the engine", new AbortController().signal, make);
  } catch (cause) {
    if (cause instanceof InvalidOptionError) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new InvalidOptionError(option, `${expected} that the engine can read (${reason})`, text);
  }
}

/** A failure is kept as well: the same bad grammar again is refused without native code. */
function kept(llama: Llama, key: string, make: () => Promise<LlamaGrammar>): Promise<LlamaGrammar> {
  const grammars = compiled.get(llama) ?? new Map<string, Promise<LlamaGrammar>>();
  compiled.set(llama, grammars);
  const grammar = grammars.get(key) ?? make();
  // the last of the map is the one asked for last
  grammars.delete(key);
  grammars.set(key, grammar);
  const [oldest] = grammars.keys();
  if (grammars.size > MAX_GRAMMARS && oldest !== undefined) grammars.delete(oldest);
  return grammar;
}
