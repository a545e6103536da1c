import { describe, expect, it } from "vitest";
import { checkGrammar, MAX_GRAMMAR_BYTES, MAX_NESTING } from "../../../src/backends/node-llama-cpp/gbnf.js";
import {
  checkJsonSchema,
  MAX_SCHEMA_DEPTH,
  MAX_SCHEMA_NODES,
} from "../../../src/backends/node-llama-cpp/json-schema.js";

const refused = (option: string, expected: string) =>
  expect.objectContaining({ code: "invalid_option", option, expected: expect.stringContaining(expected) });

const nested = (depth: number): object =>
  depth === 1 ? { type: "null" } : { type: "array", items: nested(depth - 1) };
const wide = (count: number) => ({ enum: Array.from({ length: count }, (_, index) => index) });
const cyclic: Record<string, unknown> = { type: "array" };
cyclic["items"] = cyclic;
const string = { type: "string" };

describe("a JSON schema", () => {
  it.each<[string, unknown]>([
    ["of basic types", { type: ["string", "integer", "null"], description: "x", title: "t" }],
    ["of an object", { type: "object", properties: { a: string }, required: ["a"], additionalProperties: string }],
    ["of an array", { type: "array", items: string, minItems: 1, maxItems: 1000 }],
    ["of a tuple", { type: "array", prefixItems: [string], maxItems: 1 }],
    ["with a type beside values", { type: "integer", enum: [1, 2] }],
    ["with references", { $ref: "#/$defs/a", $defs: { a: { type: "array", items: { $ref: "#/$defs/a" } } } }],
    ["of dates", { type: "string", format: "date" }],
    ["of choices", { oneOf: [string, { const: null }] }],
    ["as deep as can be", nested(MAX_SCHEMA_DEPTH)],
    ["as large as can be", wide(MAX_SCHEMA_NODES - 2)],
  ])("%s passes", (_what, schema) => {
    expect(checkJsonSchema(schema)).toEqual({ schema, text: JSON.stringify(schema) });
  });

  it("with anyOf is one with oneOf for the engine, but for properties of that name", () => {
    const schema = { anyOf: [{ type: "object", properties: { anyOf: { anyOf: [string] } } }, string] };

    expect(checkJsonSchema(schema).schema).toEqual({
      oneOf: [{ type: "object", properties: { anyOf: { oneOf: [string] } } }, string],
    });
    expect(schema).toHaveProperty("anyOf"); // the caller's own is left alone
  });

  it.each<[string, unknown, string]>([
    ["is no object", "string", "a JSON schema object"],
    ["contains itself", cyclic, "that can be written as JSON (Converting circular structure to JSON)"],
    ["cannot be written", { const: 1n }, "that can be written as JSON"],
    ["holds a number that JSON has not", { enum: [Number.NaN] }, "JSON values"],
    ["is too deep", nested(MAX_SCHEMA_DEPTH + 1), "at most 16"],
    ["is too large", wide(MAX_SCHEMA_NODES - 1), "at most 2000 values"],
    ["is too long", { const: "x".repeat(65_536) }, "at most 65536 bytes"],
    ["has no type", {}, "a known type in the schema"],
    ["has an unknown type", { type: "float" }, "a known type"],
    ["has an object among other types", { type: ["object", "null"] }, '"object" and "array" not among others'],
    ["has a keyword that would have no effect", { type: "integer", minimum: 1 }, '"minimum"'],
    ["has a keyword of another type", { type: ["string", "null"], maxLength: 3 }, '"maxLength"'],
    ["has a keyword instead of a type", { allOf: [string] }, '"allOf"'],
    ["has two kinds of alternatives", { oneOf: [string], anyOf: [string] }, '"anyOf"'],
    ["has no alternatives", { anyOf: [] }, "not empty as anyOf"],
    ["has a wrong alternative", { anyOf: [string, { minimum: 1 }] }, 'anyOf.1 of the schema without "minimum"'],
    [
      "says where it is",
      { type: "array", items: { type: "string", pattern: "x" } },
      'items of the schema without "pattern"',
    ],
    ["refers to nothing", { $ref: "#/$defs/constructor" }, "a definition that is there"],
    ["refers elsewhere", { $ref: "other.json", $defs: {} }, "a definition that is there"],
    ["has no values", { enum: [] }, "not empty"],
    ["has an object as a value", { const: {} }, "as values of"],
    ["has a value of another type", { type: "string", enum: [1] }, "of its type"],
    ["has a control character", { const: "\u0001" }, "without control characters"],
    ["has half a character in a name", { type: "object", properties: { "\ud800": string } }, "well-formed"],
    ["requires what is not there", { type: "object", properties: {}, required: ["a"] }, "as required of"],
    ["wants more than there can be", { type: "object", minProperties: 1 }, "additionalProperties"],
    ["allows less than it wants", { type: "array", minItems: 2, maxItems: 1 }, "from 2 to 1000 as maxItems"],
    ["repeats too much", { type: "string", maxLength: 1001 }, "from 0 to 1000 as maxLength"],
    ["has an unknown format", { type: "string", format: "email" }, "as format of"],
  ])("that %s is refused", (_what, schema, expected) => {
    expect(() => checkJsonSchema(schema)).toThrow(refused("jsonSchema", expected));
  });
});

describe("a grammar", () => {
  it.each([
    ["that nests", `root ::= ${"(".repeat(MAX_NESTING)}"a"${")".repeat(MAX_NESTING)}`],
    [
      "with brackets in literals, sets and comments",
      `root ::= "${"(".repeat(999)}\\"{2,1}" [("{9,1}] # ${"(".repeat(999)}\n`,
    ],
    ["that repeats", 'root ::= "a"{2} "b"{1,} "c"{0,2000}'],
    ["of the greatest length", `root ::= "a"`.padEnd(MAX_GRAMMAR_BYTES)],
  ])("%s passes", (_what, text) => {
    expect(() => checkGrammar(text)).not.toThrow();
  });

  it.each([
    ["is empty", " \n", "not empty"],
    ["is too long", `root ::= "a"`.padEnd(MAX_GRAMMAR_BYTES + 1), "at most 65536 bytes"],
    ["has a NUL", 'root ::= "a"\n\0', "NUL"],
    ["has half a character", 'root ::= "\ud800"', "surrogate"],
    ["nests too deep", `root ::= ${"(".repeat(MAX_NESTING + 1)}`, "at most 256"],
    ["nests too deep behind what closes too much", `)))${"(".repeat(MAX_NESTING + 1)}`, "at most 256"],
    ["repeats backwards", 'root ::= "a"{5,2}', "{least,most}"],
    ["repeats too much in all", 'root ::= "a"{2000} '.repeat(11), "at most 20000"],
  ])("that %s is refused", (_what, text, expected) => {
    expect(() => checkGrammar(text)).toThrow(refused("grammar", expected));
  });
});
