/**
 * What a JSON schema must be before the library may read it. The library passes over keywords that it does not know and
 * reads a schema without a type as `null`; here each is refused by its name, for output must obey what was asked.
 */
import type { GbnfJsonBasicSchema } from "node-llama-cpp";
import { InvalidOptionError } from "../../errors.js";

export const MAX_SCHEMA_DEPTH = 16;
/** Schemas, keywords and values, all counted. */
export const MAX_SCHEMA_NODES = 2000;
const MAX_SCHEMA_BYTES = 65_536;
/** The most repetitions that the engine takes is 2,000 (measured). */
const MAX_COUNT = 1000;

/** Keywords that restrict nothing. */
const ANNOTATIONS = new Set(["$schema", "$comment", "title", "description", "default", "examples"]);
/** What the library honours, by the kind of schema; the first kind that fits is the one it takes. */
const KEYWORDS = {
  $ref: ["$ref", "$defs"],
  oneOf: ["oneOf", "$defs"],
  anyOf: ["anyOf", "$defs"],
  const: ["const", "type"],
  enum: ["enum", "type"],
  object: ["type", "properties", "required", "additionalProperties", "minProperties", "maxProperties", "$defs"],
  array: ["type", "items", "prefixItems", "minItems", "maxItems", "$defs"],
  format: ["type", "format"],
  string: ["type", "minLength", "maxLength"],
  basic: ["type"],
};
type Kind = keyof typeof KEYWORDS;
const BASIC_TYPES = new Set<unknown>(["string", "number", "integer", "boolean", "null"]);
const FORMATS: readonly unknown[] = ["date-time", "time", "date"];

type Json = Readonly<Record<string, unknown>>;

/** What is wrong with a schema, whichever option it came with. */
class SchemaFault extends Error {
  readonly expected: string;
  readonly received: unknown;
  constructor(expected: string, received: unknown) {
    super(expected);
    this.expected = expected;
    this.received = received;
  }
}

export interface CheckedSchema {
  readonly schema: GbnfJsonBasicSchema;
  readonly text: string;
}

/**
 * The schema as plain data, and its text. Two schemas with their keys in another order are two: the order of the
 * properties is the order in which they are written.
 * @throws InvalidOptionError of the option that the schema came with.
 */
export function checkJsonSchema(schema: unknown, option = "jsonSchema"): CheckedSchema {
  try {
    const text = toText(schema);
    const copy: unknown = JSON.parse(text);
    checkSchema(copy, "the schema", 1, {});
    if (!isChecked(copy)) return refuse("a JSON schema object", schema);
    return { schema: copy, text };
  } catch (error) {
    if (error instanceof SchemaFault) throw new InvalidOptionError(option, error.expected, error.received);
    throw error;
  }
}

/** Its form has been checked by `checkSchema`; the library's type says no more. */
function isChecked(value: unknown): value is GbnfJsonBasicSchema {
  return isObject(value);
}

function refuse(expected: string, received: unknown): never {
  throw new SchemaFault(expected, received);
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function toText(schema: unknown): string {
  if (!isObject(schema)) return refuse("a JSON schema object", schema);
  let nodes = 0;
  let text: string;
  try {
    text = JSON.stringify(schema, (_key, value: unknown) => {
      if (++nodes > MAX_SCHEMA_NODES) refuse(`a schema of at most ${MAX_SCHEMA_NODES} values`, schema);
      // these become null, or nothing at all, without a word
      if (
        typeof value === "function" ||
        typeof value === "symbol" ||
        (typeof value === "number" && !Number.isFinite(value))
      )
        refuse("a schema of JSON values", value);
      return value;
    });
  } catch (error) {
    if (error instanceof SchemaFault) throw error;
    const [reason = ""] = (error instanceof Error ? error.message : String(error)).split("\n");
    return refuse(`a schema that can be written as JSON (${reason})`, "another");
  }
  if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) refuse(`a schema of at most ${MAX_SCHEMA_BYTES} bytes`, schema);
  return text;
}

function checkSchema(schema: unknown, at: string, depth: number, outerDefs: Json): void {
  if (!isObject(schema)) return refuse(`an object as ${at}`, schema);
  if (depth > MAX_SCHEMA_DEPTH) refuse(`at most ${MAX_SCHEMA_DEPTH} schemas inside of each other`, schema);
  const kind = kindOf(schema, at);
  for (const keyword of Object.keys(schema)) {
    if (KEYWORDS[kind].includes(keyword) || ANNOTATIONS.has(keyword)) continue;
    refuse(
      `${at} without "${keyword}", which would have no effect here (known: ${KEYWORDS[kind].join(", ")})`,
      schema[keyword],
    );
  }
  const own = schema["$defs"] ?? {};
  if (!isObject(own)) return refuse(`an object as $defs of ${at}`, own);
  const defs: Json = { ...outerDefs, ...own };
  const inner = (value: unknown, name: string) => checkSchema(value, `${name} of ${at}`, depth + 1, defs);
  for (const [name, value] of Object.entries(own)) inner(value, `$defs.${name}`);
  checks[kind](schema, at, inner, defs);
  if (kind === "anyOf") nameOneOf(schema);
}

/** The library knows alternatives by this name only; it does not mind if several fit. Changes our copy of the schema. */
function nameOneOf(schema: Json): void {
  Reflect.set(schema, "oneOf", schema["anyOf"]);
  Reflect.deleteProperty(schema, "anyOf");
}

function kindOf(schema: Json, at: string): Kind {
  if (schema["$ref"] !== undefined) return "$ref";
  if (schema["oneOf"] !== undefined) return "oneOf";
  if (schema["anyOf"] !== undefined) return "anyOf";
  if (schema["const"] !== undefined) return "const";
  if (schema["enum"] !== undefined) return "enum";
  const { type } = schema;
  if (type === "object" || type === "array") return type;
  if (type === "string") return schema["format"] === undefined ? "string" : "format";
  const types: readonly unknown[] = Array.isArray(type) ? type : [type];
  if (types.length > 0 && types.every((each) => BASIC_TYPES.has(each))) return "basic";
  // what would have said it is the likelier mistake than the missing type
  const unknown = Object.keys(schema).find((key) => !ANNOTATIONS.has(key) && key !== "type" && !isKeyword(key));
  if (type === undefined && unknown !== undefined)
    refuse(`${at} without "${unknown}", which would have no effect`, schema[unknown]);
  return refuse(
    `$ref, oneOf, anyOf, const, enum or a known type in ${at} ("object" and "array" not among others)`,
    type,
  );
}

function isKeyword(key: string): boolean {
  return Object.values(KEYWORDS).some((keywords) => keywords.includes(key));
}

type Check = (schema: Json, at: string, inner: (value: unknown, name: string) => void, defs: Json) => void;

const checks: Record<Kind, Check> = {
  $ref: ({ $ref }, at, _inner, defs) => {
    const name = typeof $ref === "string" && $ref.startsWith("#/$defs/") ? $ref.slice("#/$defs/".length) : undefined;
    if (name === undefined || !Object.hasOwn(defs, name))
      refuse(`"#/$defs/…" of a definition that is there in ${at}`, $ref);
  },
  oneOf: ({ oneOf }, at, inner) =>
    list(oneOf, `oneOf of ${at}`).forEach((each, index) => inner(each, `oneOf.${index}`)),
  anyOf: ({ anyOf }, at, inner) =>
    list(anyOf, `anyOf of ${at}`).forEach((each, index) => inner(each, `anyOf.${index}`)),
  const: (schema, at) => checkLiteral(schema["const"], schema, at),
  enum: (schema, at) => list(schema["enum"], `enum of ${at}`).forEach((value) => checkLiteral(value, schema, at)),
  object: (schema, at, inner) => {
    const { properties = {}, required = [], additionalProperties = false } = schema;
    if (!isObject(properties)) return refuse(`an object as properties of ${at}`, properties);
    const names = Object.keys(properties);
    for (const [name, value] of Object.entries(properties)) {
      checkString(name, at);
      inner(value, `properties.${name}`);
    }
    const missing = Array.isArray(required) ? required.find((name) => !names.includes(String(name))) : required;
    if (missing !== undefined) refuse(`an array of names of properties as required of ${at}`, missing);
    if (typeof additionalProperties !== "boolean") inner(additionalProperties, "additionalProperties");
    const { least } = checkCounts(schema, "minProperties", "maxProperties", names.length, at);
    if (additionalProperties === false && least > names.length)
      refuse(`${at} to have minProperties properties, or additionalProperties`, least);
  },
  array: (schema, at, inner) => {
    const { items, prefixItems } = schema;
    if (items !== undefined) inner(items, "items");
    const first = prefixItems === undefined ? [] : list(prefixItems, `prefixItems of ${at}`);
    first.forEach((each, index) => inner(each, `prefixItems.${index}`));
    checkCounts(schema, "minItems", "maxItems", first.length, at);
  },
  format: ({ format }, at) => {
    if (!FORMATS.includes(format)) refuse(`${FORMATS.join(", ")} as format of ${at}`, format);
  },
  string: (schema, at) => void checkCounts(schema, "minLength", "maxLength", 0, at),
  basic: () => undefined,
};

function list(value: unknown, what: string): readonly unknown[] {
  if (Array.isArray(value) && value.length > 0) return value;
  return refuse(`an array that is not empty as ${what}`, value);
}

/** `fixed` are there in any case. */
function checkCounts(schema: Json, min: string, max: string, fixed: number, at: string): { least: number } {
  const count = (name: string, otherwise: number, least: number) => {
    const value = schema[name] ?? otherwise;
    if (typeof value === "number" && Number.isInteger(value) && value >= least && value <= MAX_COUNT) return value;
    return refuse(`a whole number from ${least} to ${MAX_COUNT} as ${name} of ${at}`, value);
  };
  const least = count(min, 0, 0);
  count(max, MAX_COUNT, Math.max(least, fixed));
  return { least };
}

function checkLiteral(value: unknown, { type }: Json, at: string): void {
  if (typeof value === "string") checkString(value, at);
  else if (value !== null && typeof value !== "number" && typeof value !== "boolean")
    refuse(`texts, numbers, true, false or null as values of ${at}`, value);
  if (type === undefined) return;
  const types: readonly unknown[] = Array.isArray(type) ? type : [type];
  const isOfType =
    types.includes(value === null ? "null" : typeof value) || (Number.isInteger(value) && types.includes("integer"));
  if (!isOfType) refuse(`values of its type in ${at}`, value);
}

/** The library writes other control characters into the JSON as they are, where they are not allowed. */
function checkString(value: string, at: string): void {
  if (!value.isWellFormed()) refuse(`well-formed texts in ${at}`, value.toWellFormed());
  // oxlint-disable-next-line no-control-regex -- control characters are what is refused
  if (/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(value))
    refuse(`texts without control characters in ${at}`, value);
}
