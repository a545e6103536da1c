/** Checks what a chat has besides the options of every generation: its messages and its tools. */
import { z } from "zod";
import type { ChatSampling } from "../backends/backend.js";
import { InvalidOptionError } from "../errors.js";
import type { ChatMessage, ChatOptions, ToolCall, ToolDefinition } from "../inference.js";
import { check } from "../backends/option-check.js";
import { choice, flag, isRecord, object } from "./option-parts.js";
import { checkText, generateShape, samplingOf } from "./request-options.js";
import type { DispatchOptions } from "./request-options.js";

const MAX_TOOLS = 128;

const NAME = "1 to 64 of the characters A-Z, a-z, 0-9, _ and -";
const toolName = z.string({ error: NAME }).regex(/^[A-Za-z0-9_-]{1,64}$/, { error: NAME });
const record = (expected: string) => z.custom<Readonly<Record<string, unknown>>>(isRecord, expected);
const text = z.string({ error: "a string" });

const tool = object({
  name: toolName,
  description: text.optional(),
  // what a schema may hold is for the backend to say
  parameters: record("a JSON schema object").optional(),
});
const TOOL_CHOICE = '"auto", "none", "required" or { name }';
const chatOptions = object({
  ...generateShape,
  tools: z.array(tool, { error: "an array of { name, description, parameters }" }).optional(),
  toolChoice: z
    .union([choice("auto", "none", "required"), object({ name: toolName })], { error: TOOL_CHOICE })
    .optional(),
  enableThinking: flag.optional(),
});

const CALL_ID = "a non-empty string of at most 200 characters";
const callId = z.string({ error: CALL_ID }).min(1, { error: CALL_ID }).max(200, { error: CALL_ID });
const toolCall = object({ id: callId, name: toolName, arguments: record("an object") });
const chatMessages = z
  .array(
    object({
      role: choice("system", "user", "assistant", "tool"),
      content: text,
      reasoning: text.optional(),
      toolCalls: z.array(toolCall, { error: "an array of { id, name, arguments }" }).optional(),
      toolCallId: callId.optional(),
    }),
    { error: "an array of { role, content }" },
  )
  .min(1, { error: "at least one message" });
type Given = z.infer<typeof chatMessages>[number];

export function checkChatOptions(options: unknown): { sampling: ChatSampling; request: DispatchOptions } {
  const { tools, toolChoice, enableThinking, ...given }: ChatOptions = check(chatOptions, options, "options");
  const { sampling, request } = samplingOf(given);
  checkTools(tools ?? []);
  const hasTools = tools !== undefined && tools.length > 0;
  if (hasTools && (given.jsonSchema ?? given.grammar) !== undefined)
    throw new InvalidOptionError("tools", "no tools beside jsonSchema or grammar", tools);
  if (toolChoice !== undefined && toolChoice !== "auto" && toolChoice !== "none") {
    if (!hasTools) throw new InvalidOptionError("toolChoice", '"auto" or "none" where there are no tools', toolChoice);
    if (toolChoice !== "required" && !tools.some(({ name }) => name === toolChoice.name))
      throw new InvalidOptionError("toolChoice", "the name of one of the tools", toolChoice.name);
  }
  return { request, sampling: { ...sampling, tools, toolChoice, enableThinking } };
}

function checkTools(tools: readonly ToolDefinition[]): void {
  if (tools.length > MAX_TOOLS) throw new InvalidOptionError("tools", `at most ${MAX_TOOLS} tools`, tools.length);
  for (const [index, { name, description }] of tools.entries()) {
    if (tools.findIndex((other) => other.name === name) !== index)
      throw new InvalidOptionError(`tools.${index}.name`, "each name once", name);
    if (description !== undefined) checkText(description, `tools.${index}.description`);
  }
}

/** Each tool call must be answered by the tool messages right after it, for that is what every chat format writes. */
export function checkMessages(messages: unknown): readonly ChatMessage[] {
  let open = new Map<string, string>();
  const checkAnswered = () => {
    for (const [id, at] of open) throw new InvalidOptionError(at, "a tool message for each call right after it", id);
  };
  const checked = check(chatMessages, messages, "messages").map((message, index): ChatMessage => {
    const at = `messages.${index}`;
    const content = checkText(message.content, `${at}.content`);
    checkFields(message, at);
    if (message.role === "tool") {
      const { toolCallId = "" } = message;
      if (!open.delete(toolCallId))
        throw new InvalidOptionError(`${at}.toolCallId`, "the id of a call that waits for its result", toolCallId);
      return { role: "tool", toolCallId, content };
    }
    checkAnswered();
    if (message.role !== "assistant") return { role: message.role, content };
    const { reasoning, toolCalls = [] } = message;
    open = new Map(toolCalls.map(({ id }) => [id, `${at}.toolCalls`]));
    if (open.size < toolCalls.length) throw new InvalidOptionError(`${at}.toolCalls`, "each id once", toolCalls);
    return {
      role: "assistant",
      content,
      ...(reasoning !== undefined && { reasoning: checkText(reasoning, `${at}.reasoning`) }),
      ...(toolCalls.length > 0 && {
        toolCalls: toolCalls.map((call, place) => plain(call, `${at}.toolCalls.${place}`)),
      }),
    };
  });
  checkAnswered();
  return checked;
}

/** A field that has no effect in a message of this role is a mistake. */
function checkFields({ role, reasoning, toolCalls, toolCallId }: Given, at: string): void {
  const refuse = (field: string, value: unknown) => {
    throw new InvalidOptionError(`${at}.${field}`, `no such field in a message of role "${role}"`, value);
  };
  if (role === "tool" && toolCallId === undefined)
    throw new InvalidOptionError(`${at}.toolCallId`, "the id of the call that this answers", toolCallId);
  if (role !== "tool" && toolCallId !== undefined) refuse("toolCallId", toolCallId);
  if (role !== "assistant" && reasoning !== undefined) refuse("reasoning", reasoning);
  if (role !== "assistant" && toolCalls !== undefined) refuse("toolCalls", toolCalls);
}

/** As JSON says it, so that later changes of the caller's object, or strange values in it, reach no engine. */
function plain(call: ToolCall, at: string): ToolCall {
  let json: string | undefined;
  try {
    json = JSON.stringify(call.arguments);
  } catch {
    // cycles, BigInt
  }
  const copy: unknown = json === undefined ? undefined : JSON.parse(json);
  if (!isRecord(copy)) throw new InvalidOptionError(`${at}.arguments`, "an object of JSON values", call.arguments);
  return { id: call.id, name: call.name, arguments: copy };
}
