import { describe, expect, it } from "vitest";
import type { ChatMessage, ChatOptions, GenerateOptions, GenerationPart } from "../../src/index.js";
import { checkChatOptions, checkMessages } from "../../src/manager/chat-options.js";
import { FakeBackend } from "../../src/testing/index.js";
import { rejection, startTestSupervisor } from "../support/test-supervisor.js";

const asked: ChatMessage[] = [{ role: "user", content: "hello" }];
const call = { name: "look", arguments: { at: "sky" } };
const backend = () =>
  new FakeBackend({
    models: { "a.gguf": { reply: { text: "I look.", reasoning: "where is it", toolCalls: [call] } } },
  });

async function withModel() {
  const { models } = await startTestSupervisor({ backend: backend() });
  await models.load("a", "a.gguf");
  return models;
}

describe("chat", () => {
  it("gives text, reasoning and tool calls apart, whole and in pieces", async () => {
    const models = await withModel();

    const result = await models.chat("a", asked, { tools: [{ name: "look" }] });
    const parts: GenerationPart[] = [];
    const stream = models.streamChat("a", asked);
    for await (const part of stream.parts) parts.push(part);
    let text = "";
    for await (const piece of models.streamChat("a", asked)) text += piece;

    const id = expect.stringMatching(/^call_.*_0$/);
    expect(result).toMatchObject({
      text: "I look.",
      reasoning: "where is it",
      toolCalls: [{ ...call, id }],
      finishReason: "tool-calls",
      modelId: "a",
    });
    expect((await stream.result).toolCalls).toEqual([{ ...call, id }]);
    expect(parts.map(({ type }) => type)).toEqual([
      ...["reasoning", "reasoning", "reasoning", "text", "text", "tool-call", "finish"],
    ]);
    expect(text).toBe("I look.");
  });

  it("has a list of calls and no reasoning where there are none, and generate has neither", async () => {
    const models = await withModel();

    const plain = await models.generate("a", "hello");

    expect(plain.text).toBe("I look.");
    expect(plain).not.toHaveProperty("toolCalls");
    expect(plain).not.toHaveProperty("reasoning");
    const cut = await models.chat("a", asked, { maxTokens: 1 });
    expect(cut).toMatchObject({ text: "", toolCalls: [], reasoning: "where", finishReason: "length" });
  });

  it.each<[string, GenerateOptions & ChatOptions]>([
    ["tools", { tools: [{ name: "a" }] }],
    ["toolChoice", { toolChoice: "auto" }],
    ["enableThinking", { enableThinking: false }],
  ])("has the option %s, and a plain prompt refuses it", async (option, options) => {
    const models = await withModel();

    expect(await models.chat("a", asked, options)).toHaveProperty("toolCalls");
    for (const refused of [models.generate("a", "hello", options), models.stream("a", "hello", options).result])
      expect(await rejection(refused)).toMatchObject({ code: "invalid_option", option });
  });

  it("says how much of a prompt was left out", async () => {
    const { models } = await startTestSupervisor({ backend: backend() });
    await models.load("a", "a.gguf", { contextSize: 16 });
    const long = "one two three ".repeat(8);

    expect(await rejection(models.generate("a", long))).toMatchObject({ code: "context_length_exceeded" });
    const { usage } = await models.generate("a", long, { onOverflow: "truncate-oldest", maxTokens: 6 });

    expect(usage).toMatchObject({ promptTokens: 10, truncatedTokens: 15 });
  });
});

describe("the options of a chat", () => {
  const tools = [{ name: "a" }, { name: "b-_9", description: "x", parameters: { type: "object" } }];

  it.each<[string, unknown]>([
    ["none", {}],
    ["tools", { tools }],
    ["no tools", { tools: [], toolChoice: "auto", jsonSchema: {} }],
    ["a choice", { tools, toolChoice: { name: "a" } }],
    ["a forced call", { tools, toolChoice: "required", enableThinking: true, onOverflow: "stop" }],
    ["128 tools", { tools: Array.from({ length: 128 }, (_, index) => ({ name: `a${index}` })) }],
  ])("can be %s", (_, options) => {
    expect(() => checkChatOptions(options)).not.toThrow();
  });

  it.each<[string, unknown, string]>([
    ["129 tools", { tools: Array.from({ length: 129 }, (_, index) => ({ name: `a${index}` })) }, "tools"],
    ["a name twice", { tools: [...tools, { name: "a" }] }, "tools.2.name"],
    ["a name with a space", { tools: [{ name: "a b" }] }, "tools.0.name"],
    ["a name that is too long", { tools: [{ name: "a".repeat(65) }] }, "tools.0.name"],
    ["a description that is none", { tools: [{ name: "a", description: "\uD83D" }] }, "tools.0.description"],
    ["parameters that are no object", { tools: [{ name: "a", parameters: [] }] }, "tools.0.parameters"],
    ["another field", { tools: [{ name: "a", schema: {} }] }, "tools.0.schema"],
    ["a choice that is none", { tools, toolChoice: "any" }, "toolChoice"],
    ["a choice of no tool", { tools, toolChoice: { name: "c" } }, "toolChoice"],
    ["a forced call without tools", { toolChoice: "required" }, "toolChoice"],
    ["a schema beside tools", { tools, jsonSchema: {} }, "tools"],
    ["a grammar beside tools", { tools, grammar: 'root ::= "a"' }, "tools"],
    ["another overflow", { onOverflow: "shift" }, "onOverflow"],
  ])("cannot be %s", (_, options, option) => {
    expect(() => checkChatOptions(options)).toThrow(expect.objectContaining({ code: "invalid_option", option }));
  });
});

describe("the messages of a chat", () => {
  const calls = (...ids: string[]) => ids.map((id) => ({ id, name: "look", arguments: {} }));
  const said = (...ids: string[]) => ({ role: "assistant", content: "", toolCalls: calls(...ids) });
  const answer = (toolCallId: string) => ({ role: "tool", toolCallId, content: "x" });
  const [user] = asked;

  it("may have reasoning, calls and their results, in any order within a turn", () => {
    const messages = [
      user,
      { ...said("1", "2"), reasoning: "hm" },
      answer("2"),
      answer("1"),
      said("1"),
      answer("1"),
      { role: "assistant", content: "done" },
      user,
    ];

    expect(checkMessages(messages)).toEqual(messages);
  });

  it.each<[string, unknown[], string]>([
    ["the result of an unknown call", [user, said("1"), answer("2")], "messages.2.toolCallId"],
    ["a second result", [user, said("1"), answer("1"), answer("1")], "messages.3.toolCallId"],
    ["a result without an id", [user, said("1"), { role: "tool", content: "x" }], "messages.2.toolCallId"],
    [
      "a call without a result before the next message",
      [user, said("1", "2"), answer("1"), user],
      "messages.1.toolCalls",
    ],
    ["a call without a result at the end", [user, said("1")], "messages.1.toolCalls"],
    ["an id twice", [user, said("1", "1")], "messages.1.toolCalls"],
    ["reasoning of the user", [{ ...user, reasoning: "x" }], "messages.0.reasoning"],
    ["calls of the system", [{ role: "system", content: "", toolCalls: calls("1") }], "messages.0.toolCalls"],
    ["a call's id of the user", [{ ...user, toolCallId: "1" }], "messages.0.toolCallId"],
    ["reasoning that is no text", [{ role: "assistant", content: "", reasoning: "\uD83D" }], "messages.0.reasoning"],
    [
      "arguments that are no JSON",
      [{ role: "assistant", content: "", toolCalls: [{ id: "1", name: "a", arguments: { a: 1n } }] }, answer("1")],
      "messages.0.toolCalls.0.arguments",
    ],
  ])("cannot have %s", (_, messages, option) => {
    expect(() => checkMessages(messages)).toThrow(expect.objectContaining({ code: "invalid_option", option }));
  });
});
