import { GeneralChatWrapper, JinjaTemplateChatWrapper, QwenChatWrapper } from "node-llama-cpp";
import { beforeAll, describe, expect, it } from "vitest";
import type { ChatFormat } from "../../../src/backends/node-llama-cpp/chat-format.js";
import { render, type RenderOptions } from "../../../src/backends/node-llama-cpp/chat-render.js";
import type { ChatMessage } from "../../../src/inference.js";
import { makeRecitingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder, withModel } from "../../support/bare-engine.js";
import { OPENED, QWEN } from "../../support/chat-templates.js";

const at = useTemporaryFolder();
const look = { name: "look", parameters: { type: "object", properties: { at: { type: "string" } } } };
const usual: RenderOptions = {
  tools: [],
  isNew: true,
  isStructured: false,
  enableThinking: undefined,
  check: () => undefined,
};
const call = (id: string, place: string) => ({ id, name: "look", arguments: { at: place } });

beforeAll(async () => {
  await makeRecitingModel(at("model.gguf"), { text: "x" });
});

/** The prompt as text, special tokens too. */
function promptOf(
  format: (
    tokenizer: NonNullable<ConstructorParameters<typeof JinjaTemplateChatWrapper>[0]["tokenizer"]>,
  ) => ChatFormat,
  messages: ChatMessage[],
  options: Partial<RenderOptions> = {},
): Promise<string> {
  return withModel(at("model.gguf"), async (model) => {
    const { tokens } = render(format(model.tokenizer), model, messages, { ...usual, ...options });
    return model.detokenize(tokens, true);
  });
}

const templated =
  (template: string, reasoning = true) =>
  (tokenizer: NonNullable<ConstructorParameters<typeof JinjaTemplateChatWrapper>[0]["tokenizer"]>) =>
    new JinjaTemplateChatWrapper({ template, tokenizer, reasoning });

const conversation: ChatMessage[] = [
  { role: "system", content: "Be good." },
  { role: "user", content: "Look!" },
  { role: "assistant", content: "I do.", reasoning: "Where?", toolCalls: [call("1", "sky"), call("2", "sea")] },
  { role: "tool", toolCallId: "2", content: '{"big": 12345678901234567890}' },
  { role: "tool", toolCallId: "1", content: '{"sky": "blue"}' },
  { role: "assistant", content: "More.", toolCalls: [call("3", "land")] },
  { role: "tool", toolCallId: "3", content: "green" },
];

describe("a conversation as the model reads it", () => {
  it("has tools, reasoning, calls and each call's own result in the template of its file", async () => {
    expect(await promptOf(templated(QWEN), conversation, { tools: [look] })).toBe(
      `<|im_start|>system
Be good.

# Tools

<tools>
{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
</tools><|im_end|>
<|im_start|>user
Look!<|im_end|>
<|im_start|>assistant
<think>
Where?
</think>

I do.
<tool_call>
{"name": "look", "arguments": {"at": "sky"}}
</tool_call>
<tool_call>
{"name": "look", "arguments": {"at": "sea"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"sky": "blue"}
</tool_response>
<tool_response>
"{\\"big\\": 12345678901234567890}"
</tool_response><|im_end|>
<|im_start|>assistant
More.
<tool_call>
{"name": "look", "arguments": {"at": "land"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
"green"
</tool_response><|im_end|>
<|im_start|>assistant
`,
    );
  });

  it("goes on in the assistant's last message, and after an answer to a tool's result", async () => {
    const messages: ChatMessage[] = [...conversation, { role: "assistant", content: "It is" }];

    const simple: ChatMessage[] = [
      { role: "user", content: "Look!" },
      { role: "assistant", content: "I" },
    ];

    expect(await promptOf(templated(QWEN), simple, { isNew: false })).toMatch(/assistant\nI$/);
    expect(await promptOf(() => new GeneralChatWrapper(), simple, { isNew: false })).toMatch(/Assistant\nI$/);
    expect(await promptOf(templated(QWEN), messages, { tools: [look], isNew: false })).toMatch(
      /green"\n<\/tool_response><\|im_end\|>\n<\|im_start\|>assistant\nIt is$/,
    );
  });

  it("is told of tools in the library's words where its format has none", async () => {
    const prompt = await promptOf(() => new GeneralChatWrapper(), conversation.slice(0, 5), { tools: [look] });

    expect(prompt).toContain("function look(params: {at: string});");
    expect(prompt).toContain('I do.||call: look({"at": "sky"})\n||result: {"sky": "blue"}\n||call: look(');
    // a format without reasoning has no place for it
    expect(prompt).not.toContain("Where?");
  });

  it.each<[string, Parameters<typeof promptOf>[0], Partial<RenderOptions>, RegExp]>([
    ["an open thought, if the template opens it", templated(OPENED), {}, /assistant\n<think>\n$/],
    ["none after a message that goes on", templated(OPENED), { isNew: false }, /assistant\n$/],
    ["an empty thought before JSON", templated(OPENED), { isStructured: true }, /<think>\n\n<\/think>\n\n$/],
    ["nothing where the model thinks by itself", templated(QWEN), {}, /assistant\n$/],
    ["an empty one if it must not", templated(QWEN, false), { enableThinking: false }, /<think>\n\n<\/think>\n\n$/],
    [
      "one only, if the library writes it",
      () => new QwenChatWrapper({ thoughts: "discourage" }),
      { enableThinking: false },
      /assistant\n<think>\n\n<\/think>\s*$/,
    ],
  ])("ends with %s", async (_, format, options, expected) => {
    expect(await promptOf(format, [{ role: "user", content: "Look!" }], options)).toMatch(expected);
  });
});
