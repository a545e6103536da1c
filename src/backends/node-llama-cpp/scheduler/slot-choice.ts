/** Which slot's cache a prompt goes on from, and what may be lost for it. Decisions only. */

/** Tokens and whose they are; tokens of different scopes are never compared. */
export interface ScopedTokens {
  readonly tokens: readonly number[];
  readonly scope: string;
}

/** What a free slot still has in its KV cache. */
export interface SlotCache extends ScopedTokens {
  /** False where the model's state cannot be cut (recurrent, sliding window): then it is kept whole or not at all. */
  readonly canCut: boolean;
  /** Jobs that have been given a slot since this one was used last. */
  readonly age: number;
  /** Slots of the same context that are taken. */
  readonly busyNeighbours: number;
}

/** How much of a cache a prompt can go on from. Its last token is evaluated in any case, for what comes next is read there. */
export function reusableTokens(cache: SlotCache, prompt: ScopedTokens): number {
  if (cache.scope !== prompt.scope) return 0;
  const most = Math.min(cache.tokens.length, prompt.tokens.length - 1);
  let common = 0;
  while (common < most && cache.tokens[common] === prompt.tokens[common]) common++;
  return cache.canCut || common === cache.tokens.length ? common : 0;
}

/**
 * What a token that would be lost counts for, against one that is saved for certain: half of the conversations come
 * back. And however long nobody came, a match of under a ninth of a cache does not destroy the rest.
 */
const WORTH = { fresh: 1 / 2, least: 1 / 8 };

/**
 * The slot that a prompt is to have, by its position in the list. Each is judged by the tokens that need not be
 * evaluated, less those that would be lost to a conversation that may come back. The latter count for less the longer
 * nobody came: else a conversation that was given up would keep its slot from the living ones for ever.
 */
export function chooseSlot(caches: readonly SlotCache[], prompt: ScopedTokens): number {
  const judged = caches.map((cache, index) => {
    const reused = reusableTokens(cache, prompt);
    const lost = cache.tokens.length - reused;
    const worth = Math.max(WORTH.least, (WORTH.fresh * caches.length) / (caches.length + cache.age));
    return { index, age: cache.age, busy: cache.busyNeighbours, gain: reused - lost * worth, lost };
  });
  // Where nothing is won by a cache, the context with most room. Among equals the slot that loses least, then the one that
  // nobody has wanted for longest.
  judged.sort(
    (a, b) =>
      Math.max(0, b.gain) - Math.max(0, a.gain) ||
      a.busy - b.busy ||
      b.gain - a.gain ||
      a.lost - b.lost ||
      b.age - a.age ||
      a.index - b.index,
  );
  return judged[0]?.index ?? 0;
}
