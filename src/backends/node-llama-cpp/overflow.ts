/** How much of a prompt is evaluated where not all of it fits. Decisions only. */
import type { ChatMessage } from "../../inference.js";
import type { Sampling } from "../backend.js";

export const DEFAULT_MAX_TOKENS = 512;

/** Tokens that a prompt may have so that there is room for the answer. */
export function promptRoom({ maxTokens }: Sampling, contextSize: number): number {
  return contextSize - (maxTokens ?? Math.min(DEFAULT_MAX_TOKENS, Math.floor(contextSize / 2)));
}

/** The first `kept` tokens (the begin token) and the end of the rest. */
export function cutTokens<Token>(tokens: readonly Token[], room: number, kept: number): Token[] {
  if (tokens.length <= room || room <= kept) return [...tokens];
  return [...tokens.slice(0, kept), ...tokens.slice(tokens.length - (room - kept))];
}

/**
 * The conversation with less and less of it, each without the oldest of the one before: cut before a user's message as
 * long as there is one, else before an assistant's. System messages at the beginning stay, and so does the last message.
 */
export function shorterChats(messages: readonly ChatMessage[]): (readonly ChatMessage[])[] {
  const firstOther = messages.findIndex(({ role }) => role !== "system");
  if (firstOther === -1) return [];
  const lastUser = messages.findLastIndex(({ role }) => role === "user");
  return messages.flatMap(({ role }, index) => {
    if (index <= firstOther || (index <= lastUser ? role !== "user" : role === "tool")) return [];
    return [[...messages.slice(0, firstOther), ...messages.slice(index)]];
  });
}
