import { describe, expect, it } from "vitest";
import { closeJson } from "../../../src/backends/node-llama-cpp/close-json.js";

describe("closeJson", () => {
  it.each([
    ["nothing", "", null],
    ["white space", " \n", null],
    ["a string", '"ab', "ab"],
    ["an empty string", '"', ""],
    ["a backslash", '"a\\', "a\\"],
    ["an escape", '"a\\n', "a\n"],
    ["a code before its digits", '"a\\u', "a\u0000"],
    ["a code in its digits", '"a\\u00', "a\u0000"],
    ["a code after its digits", '"a\\u0041', "aA"],
    ["a string with brackets in it", '["{[\\"', ['{["']],
    ["a sign", "-", -0],
    ["a number", "[1,23", [1, 23]],
    ["a point", "[1.", [1]],
    ["an exponent", "[1e", [1]],
    ["an exponent's sign", "[1E-", [1]],
    ["true", "[tr", [true]],
    ["false", '{"a":f', { a: false }],
    ["null", "n", null],
    ["an empty object", "{", {}],
    ["a key", '{"a', { a: null }],
    ["a key's escape", '{"a\\', { "a\\": null }],
    ["after a key", '{"a"', { a: null }],
    ["after a colon", '{"a": ', { a: null }],
    ["after a value", '{"a":1', { a: 1 }],
    ["after a value and white space", '{"a":1\n  ', { a: 1 }],
    ["after a comma in an object", '{"a":1,', { a: 1, "": null }],
    ["an empty array", "[", []],
    ["after a comma in an array", "[1, ", [1, null]],
    ["deep inside", '{"a":[{"b":[1,{"c":"x', { a: [{ b: [1, { c: "x" }] }] }],
    ["after an inner object", '[{"a":{}', [{ a: {} }]],
    ["after an inner array as a value", '{"a":[1],"b":[[2],', { a: [1], b: [[2], null] }],
  ])("closes what is cut in %s", (_where, text, value) => {
    expect(JSON.parse(text + closeJson(text))).toEqual(value);
  });

  it.each(['{"a":[1,true,null,"x"]}', "12", '"a"', "false", "{} \n"])("adds nothing to %s, which is whole", (text) => {
    expect(closeJson(text)).toBe("");
  });

  it("closes a text at every place where it can be cut", () => {
    const text = JSON.stringify(
      { "a\n": [1.5e-7, -2, 'é\u0001\\"😀', {}, [], [[]]], b: { c: { d: false } }, e: null },
      null,
      1,
    );
    const cuts = Array.from({ length: text.length + 1 }, (_, length) => text.slice(0, length));

    for (const cut of cuts) expect(() => void JSON.parse(cut + closeJson(cut)), cut).not.toThrow();
  });
});
