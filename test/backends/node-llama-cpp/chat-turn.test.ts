import { describe, expect, it } from "vitest";
import { ChatTurn } from "../../../src/backends/node-llama-cpp/chat-turn.js";
import type { TurnPiece, TurnRules } from "../../../src/backends/node-llama-cpp/chat-turn.js";
import type { TurnFormat } from "../../../src/backends/node-llama-cpp/turn-marks.js";

const qwen: TurnFormat = {
  thought: { open: "<think>\n", close: "\n</think>\n\n", isOpen: false },
  calls: [
    {
      section: "",
      prefix: '<tool_call>\n{"name": "',
      paramsPrefix: '", "arguments": ',
      suffix: "}\n</tool_call>",
      between: "\n",
      sectionEnd: "",
    },
  ],
  isParallel: true,
  ends: ["<|im_end|>"],
};
const general: TurnFormat = {
  ...qwen,
  calls: [{ section: "", prefix: "||call: ", paramsPrefix: "(", suffix: ")", between: "", sectionEnd: "" }],
  isParallel: false,
};
const mistral: TurnFormat = {
  ...qwen,
  thought: undefined,
  calls: [
    {
      section: "[TOOL_CALLS][",
      prefix: '{"name": "',
      paramsPrefix: '", "arguments": ',
      suffix: "}",
      between: ", ",
      sectionEnd: "]",
    },
  ],
};
const lines: TurnFormat = {
  ...qwen,
  calls: [{ section: "", prefix: ">>>", paramsPrefix: "\n", suffix: "", between: "", sectionEnd: "" }],
};
const xml: TurnFormat = {
  ...qwen,
  calls: [
    {
      section: "",
      prefix: "<tool_call>\n<function=",
      paramsPrefix: ">\n<parameter=params>\n",
      suffix: "\n</parameter>\n</function>",
      between: "",
      sectionEnd: "",
    },
  ],
};
const opened: TurnFormat = { ...qwen, thought: { open: "<think>\n", close: "</think>", isOpen: true } };

const tools = [
  { name: "get", takesNothing: false },
  { name: "get_all", takesNothing: false },
  { name: "now", takesNothing: true },
];
const free: TurnRules = {
  openCall: () => true,
  closeCall: () => undefined,
  openThought: () => undefined,
  closeThought: () => undefined,
};

/** What a turn is made of: the pieces of one kind that follow each other are one. */
function read(format: TurnFormat, pieces: readonly string[], isCut = false, rules = free): TurnPiece[] {
  const turn = new ChatTurn(format, tools, rules);
  const all = [...pieces.flatMap((piece) => turn.push(piece)), ...turn.end(isCut)];
  const merged: TurnPiece[] = [];
  for (const piece of all) {
    const last = merged.at(-1);
    if (last !== undefined && "text" in last && "text" in piece && last.type === piece.type)
      merged.splice(-1, 1, { type: last.type, text: last.text + piece.text });
    else merged.push(piece);
  }
  return merged;
}

const text = (said: string): TurnPiece => ({ type: "text", text: said });
const reasoning = (thought: string): TurnPiece => ({ type: "reasoning", text: thought });
const call = (name: string, given: Record<string, unknown>): TurnPiece => ({ type: "call", name, arguments: given });
const end: TurnPiece = { type: "end" };
const CALL = '<tool_call>\n{"name": "get", "arguments": {"a": "}\\"{"}}\n</tool_call>';

describe("a turn", () => {
  it.each<[string, TurnFormat, string, TurnPiece[]]>([
    ["text alone, exactly", qwen, " a < b \n", [text(" a < b \n")]],
    ["a call", qwen, CALL, [call("get", { a: '}"{' })]],
    [
      "a call as a model may space it",
      qwen,
      '<tool_call>{"name":"get",\n "arguments":{"a" : 1} }</tool_call>',
      [call("get", { a: 1 })],
    ],
    [
      "text before calls and after them",
      qwen,
      `Wait. ${CALL}\n${CALL}\nDone.`,
      [text("Wait."), call("get", { a: '}"{' }), call("get", { a: '}"{' }), text("Done.")],
    ],
    [
      "reasoning, a call in it, text and a call",
      qwen,
      `<think>\nSo: ${CALL}\nyes\n</think>\n\nI look. ${CALL}`,
      [reasoning(`So: ${CALL}\nyes`), text("I look."), call("get", { a: '}"{' })],
    ],
    ["a thought that the prompt opened", opened, "\nhm </think>\n\nyes", [reasoning("hm"), text("yes")]],
    ["an empty thought", qwen, "<think>\n\n</think>\n\nyes", [text("yes")]],
    ["a thought without an end", qwen, "<think>so", [reasoning("so")]],
    ["a call of an unknown tool, which is text", qwen, CALL.replace("get", "got"), [text(CALL.replace("get", "got"))]],
    ["the name of another tool in front", lines, '>>>get_all\n{"a": 1}', [call("get_all", { a: 1 })]],
    ["the short name", lines, '>>>get\n{"a": 1}', [call("get", { a: 1 })]],
    ["half an opening, which is text", qwen, '<tool_call>\n{"name": "get', [text('<tool_call>\n{"name": "get')]],
    ["a begun call, which is text", qwen, CALL.slice(0, 50), [text(CALL.slice(0, 50))]],
    ["a call that only lacks its closing", qwen, CALL.slice(0, -5), [call("get", { a: '}"{' })]],
    ["arguments that are none, which is text", general, "||call: get(1)", [text("||call: get(1)")]],
    ["arguments that are no JSON, which is text", general, "||call: get({a})", [text("||call: get({a})")]],
    ["a call of a tool that takes nothing", general, "||call: now()", [call("now", {})]],
    ["the same with an empty object", general, "||call: now({})", [call("now", {})]],
    ["a result that the model makes up", general, '||call: get({"a": 1})\n||result: 2', [call("get", { a: 1 }), end]],
    [
      "a call that only begins like the format's, once the name is known",
      xml,
      '<tool_call>\n<function=get>\n<parameter=params>\n{"a": 1}\n</parameter></function>',
      [call("get", { a: 1 })],
    ],
    [
      "a call that goes on otherwise than its format, which is text",
      xml,
      "<tool_call>\n<function=get>\n<parameter=a>1</parameter>",
      [text("<tool_call>\n<function=get>\n<parameter=a>1</parameter>")],
    ],
    [
      "two calls of a format that knows one",
      general,
      '||call: get({"a": 1})\n||call: now()',
      [call("get", { a: 1 }), call("now", {})],
    ],
    [
      "a section of calls",
      mistral,
      'I look.[TOOL_CALLS][{"name": "get", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
      [text("I look."), call("get", { a: 1 }), call("now", {})],
    ],
    ["JSON that looks like a call", mistral, '{"name": "Bob", "age": 3}', [text('{"name": "Bob", "age": 3}')]],
    ["an end of turn in text", qwen, "yes<|im_end|>no", [text("yes"), end]],
    ["an end of turn in a thought", qwen, "<think>yes<|im_end|>no", [reasoning("yes"), end]],
  ])("has %s, wherever its pieces end", (_, format, said, expected) => {
    expect(read(format, [said])).toEqual(expected);
    expect(read(format, Array.from(said))).toEqual(expected);
    for (let at = 1; at < said.length; at++)
      expect(read(format, [said.slice(0, at), said.slice(at)])).toEqual(expected);
  });

  it.each<[string, TurnFormat, string, TurnPiece[]]>([
    ["a begun opening", qwen, "I look. <tool_ca", [text("I look.")]],
    ["a begun call", qwen, `I look. ${CALL.slice(0, 50)}`, [text("I look.")]],
    ["a call without its closing", qwen, CALL.slice(0, -5), []],
    ["a begun closing of a thought", qwen, "<think>so\n</thi", [reasoning("so")]],
    ["nothing else", qwen, "I look. ", [text("I look. ")]],
  ])("that is cut leaves out %s", (_, format, said, expected) => {
    expect(read(format, Array.from(said), true)).toEqual(expected);
  });

  it("holds back no more than what may become a mark, and the white space before it", () => {
    const turn = new ChatTurn(qwen, tools, free);

    expect(turn.push("a b ")).toEqual([text("a b")]);
    expect(turn.push("c <")).toEqual([text(" c")]);
    expect(turn.push("t")).toEqual([]);
    expect(turn.push("d")).toEqual([text(" <td")]);
  });

  it("counts special tokens for marks only, and shows none of them", () => {
    const turn = new ChatTurn(mistral, tools, free);
    const said = [
      ...turn.push("a"),
      ...turn.push("<pad>", true),
      ...turn.push(" b"),
      ...turn.push("[TOOL_CALLS]", true),
      ...turn.push('[{"name": "now", "arguments": {}}]'),
    ];

    expect(said).toEqual([text("a"), text(" b"), call("now", {})]);
  });

  it("is text where what came with the opening cannot begin the arguments", () => {
    const seen: string[] = [];
    // not the first one; what came with it begins right after the name's end
    const rules: TurnRules = { ...free, openCall: (_call, after) => seen.push(after) > 1 };
    const said = '||call: get({"b';

    expect(read(general, [said, '": 1})||call: get(', '{"a": 1})'], false, rules)).toEqual([
      text('||call: get({"b": 1})'),
      call("get", { a: 1 }),
    ]);
    expect(seen).toEqual(['{"b', ""]);
  });
});
