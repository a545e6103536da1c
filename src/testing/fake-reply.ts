import type { GenerationPart, ToolCall } from "../inference.js";

/** What a fake model answers in a chat; to a plain prompt it answers the text alone. */
export interface FakeReply {
  readonly text?: string;
  readonly reasoning?: string;
  /** Their ids are made as an engine would make them. */
  readonly toolCalls?: readonly Pick<ToolCall, "name" | "arguments">[];
}

export type FakePart = Exclude<GenerationPart, { readonly type: "finish" }>;

/** The answer in the order in which it is given, a part for each token: a word, or a whole call. */
export function partsOf(reply: string | FakeReply, requestId: string, isChat: boolean): FakePart[] {
  const { text = "", reasoning = "", toolCalls = [] } = typeof reply === "string" ? { text: reply } : reply;
  const said = words(text).map((word): FakePart => ({ type: "text", text: word }));
  if (!isChat) return said;
  return [
    ...words(reasoning).map((word): FakePart => ({ type: "reasoning", text: word })),
    ...said,
    ...toolCalls.map((call, index): FakePart => ({
      type: "tool-call",
      toolCall: { id: `call_${requestId}_${index}`, name: call.name, arguments: call.arguments },
    })),
  ];
}

/** Words with the space before them, so that joined they are the text again. */
export function words(text: string): string[] {
  return text.match(/\s*\S+|\s+$/g) ?? [];
}
