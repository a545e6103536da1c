/** From messages as callers write them to the library's chat history. */
import type { ChatHistoryItem, ChatModelFunctionCall, ChatModelResponse } from "node-llama-cpp";
import type { AssistantMessage, ChatMessage } from "../../inference.js";

/**
 * The history; its last item is the model's turn, which goes on there. What the model says, calls and is told by its
 * tools is one turn for the library. `thinks`: the format can show past reasoning.
 */
export function chatHistory(messages: readonly ChatMessage[], thinks: boolean): ChatHistoryItem[] {
  const history: ChatHistoryItem[] = [];
  /** The calls of the turn, which wait for their results. */
  const calls = new Map<string, ChatModelFunctionCall>();
  for (const message of messages) {
    if (message.role === "tool") {
      const call = calls.get(message.toolCallId);
      if (call !== undefined) call.result = resultOf(message.content);
    } else if (message.role === "assistant") {
      const turn = openTurn(history);
      turn.response.push(...responseOf(message, thinks));
      for (const [index, { id, name, arguments: params }] of (message.toolCalls ?? []).entries()) {
        const call: ChatModelFunctionCall = {
          type: "functionCall",
          name,
          params,
          result: undefined,
          startsNewChunk: index === 0,
        };
        calls.set(id, call);
        turn.response.push(call);
      }
    } else history.push({ type: message.role, text: message.content });
  }
  // else it goes on with what the last message says
  if (messages.at(-1)?.role !== "assistant") openTurn(history).response.push("");
  return history;
}

/** The model's turn at the end: the one that goes on after its tools' results, or a new one. */
function openTurn(history: ChatHistoryItem[]): ChatModelResponse {
  const last = history.at(-1);
  if (last?.type === "model") {
    const said = last.response.at(-1);
    if (typeof said === "object" && said.type === "functionCall") return last;
  }
  const turn: ChatModelResponse = { type: "model", response: [] };
  history.push(turn);
  return turn;
}

function responseOf({ reasoning, content }: AssistantMessage, thinks: boolean): ChatModelResponse["response"] {
  const thought = { type: "segment", segmentType: "thought", text: reasoning ?? "", ended: true } as const;
  return [...(reasoning !== undefined && thinks ? [thought] : []), content];
}

/** More digits than a number can hold, or an exponent: such JSON would read otherwise when it is written again. */
const INEXACT_NUMBER = /\d{16}|\d[eE]/;

/** The library writes results as JSON; a text that is JSON already must not be quoted once more. */
function resultOf(content: string): unknown {
  if (!/^\s*[[{]/.test(content) || INEXACT_NUMBER.test(content)) return content;
  try {
    const value: unknown = JSON.parse(content);
    return value;
  } catch {
    return content;
  }
}
