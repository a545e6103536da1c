/** What each slot of a context does in the next step. Decisions only. */

/** Where a slot's job is. */
export interface Progress {
  readonly promptTokens: number;
  /** Prompt tokens that are in the cache; all of them once it decodes. */
  readonly evaluatedTokens: number;
  readonly decodes: boolean;
  /** Its reader is behind: nothing more is to be produced for it now. */
  readonly isPaused: boolean;
  /** The step in which it produced its last token. */
  readonly lastStep: number;
}

/**
 * `prefill`: evaluate `tokens` more of the prompt. `start`: evaluate the rest of it and sample the first token.
 * `decode`: sample the next one. `wait`: nothing in this step.
 */
export type Work =
  | { readonly type: "prefill"; readonly tokens: number }
  | { readonly type: "start" }
  | { readonly type: "decode" }
  | { readonly type: "wait" };

const START: Work = { type: "start" };
const DECODE: Work = { type: "decode" };
export const WAIT: Work = { type: "wait" };

/** How much one step may do. */
export interface StepLimits {
  /** Tokens of one native batch. */
  readonly batchSize: number;
  /** Prompt tokens, over all slots. In a light step only prompts that end in it are evaluated, else the long ones are too. */
  readonly sliceTokens: number;
  readonly isLight: boolean;
  /** Slots that decode at most. */
  readonly decodeWidth: number;
}

/** A prompt that has no more than this left is short: it may be evaluated in a light step. */
export const LIGHT_TOKENS = 32;

/**
 * The next step of every slot, in the order given. Of those that decode, the ones that have waited longest advance. The
 * prefilling ones share one slice, equally and the short ones first, so that a step costs the same however many prefill
 * and a short prompt never waits for a long one. A step fits into one native batch.
 */
export function planStep(slots: readonly Progress[], limits: StepLimits): Work[] {
  const plan = slots.map(({ decodes, isPaused }): Work => (decodes && !isPaused ? DECODE : WAIT));
  const wanted = plan.reduce((count, work) => (work === DECODE ? count + 1 : count), 0);
  const decoding = Math.min(limits.decodeWidth, wanted);
  if (decoding < wanted) holdBack(slots, plan, decoding);
  if (slots.every(({ decodes }) => decodes)) return plan;

  const prefilling = slots
    .map((slot, index) => ({ index, left: tokensLeft(slot) }))
    .filter(({ left }) => left > 0 && (!limits.isLight || left <= LIGHT_TOKENS))
    .toSorted((a, b) => a.left - b.left);
  let budget = Math.min(Math.max(limits.sliceTokens, prefilling.length), Math.max(1, limits.batchSize - decoding));
  for (const [rank, { index, left }] of prefilling.entries()) {
    const share = limits.isLight ? budget : Math.ceil(budget / (prefilling.length - rank));
    const tokens = Math.min(left, share);
    if (tokens === 0 || (limits.isLight && tokens < left)) continue;
    budget -= tokens;
    plan[index] = tokens === left ? START : { type: "prefill", tokens };
  }
  return plan;
}

/** Prompt tokens that are still to be evaluated. */
export function tokensLeft({ decodes, promptTokens, evaluatedTokens }: Progress): number {
  return decodes ? 0 : promptTokens - evaluatedTokens;
}

/** Of those that would decode, lets no more than `width` do so: those that have waited longest. */
function holdBack(slots: readonly Progress[], plan: Work[], width: number): void {
  const indices = plan.flatMap((work, index) => (work === DECODE ? [index] : []));
  indices.sort((a, b) => (slots[a]?.lastStep ?? 0) - (slots[b]?.lastStep ?? 0));
  for (const index of indices.slice(width)) plan[index] = WAIT;
}

/** Prompt tokens that a plan evaluates. */
export function prefillTokens(slots: readonly Progress[], plan: readonly Work[]): number {
  return slots.reduce((sum, { promptTokens, evaluatedTokens }, index) => {
    const work = plan[index];
    if (work?.type === "prefill") return sum + work.tokens;
    return work?.type === "start" ? sum + promptTokens - evaluatedTokens : sum;
  }, 0);
}
