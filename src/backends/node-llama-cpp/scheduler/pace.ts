/**
 * How prompts and those that decode share the time of a context. A step with a slice of a long prompt is heavy. After it
 * come light steps, without any long prompt, for a share of the time that it took: so a stream goes on, and a short request
 * is answered, while a long prompt is evaluated, which is not held up by more than that share.
 */
import { SliceSizes } from "./slice-sizes.js";
import { LIGHT_TOKENS, prefillTokens, tokensLeft, type Progress, type Work } from "./step-plan.js";

/** Light time for each heavy millisecond. */
const LIGHT_SHARE = 0.15;

const DECODE_ONLY = { isLight: false, sliceTokens: 0 };

export class Pace {
  readonly #sizes: SliceSizes;
  readonly #hasLightSteps: boolean;
  /** Light time that is left. */
  #lightMs = 0;
  /** Tokens that the longest prompt had left before the last step. */
  #longest = 0;

  constructor(batchSize: number) {
    this.#sizes = new SliceSizes(batchSize);
    this.#hasLightSteps = batchSize >= LIGHT_TOKENS;
  }

  /** What kind of step comes next. */
  next(slots: readonly Progress[]): { readonly isLight: boolean; readonly sliceTokens: number } {
    this.#longest = slots.reduce((most, slot) => Math.max(most, tokensLeft(slot)), 0);
    if (this.#longest <= LIGHT_TOKENS) this.#lightMs = 0;
    if (this.#longest === 0) return DECODE_ONLY;
    const decodes = slots.some((slot) => slot.decodes && !slot.isPaused);
    const hasLight = decodes || slots.some((slot) => tokensLeft(slot) > 0 && tokensLeft(slot) <= LIGHT_TOKENS);
    const isLight = this.#hasLightSteps && hasLight && this.#lightMs > 0;
    return { isLight, sliceTokens: isLight ? LIGHT_TOKENS : this.#sizes.choose(decodes) };
  }

  /** A step that was planned like this has taken so long. */
  record(slots: readonly Progress[], plan: readonly Work[], isLight: boolean, ms: number): void {
    if (isLight) this.#lightMs -= ms;
    if (isLight || this.#longest === 0) return;
    if (this.#longest > LIGHT_TOKENS) this.#lightMs += LIGHT_SHARE * ms;
    this.#sizes.record(prefillTokens(slots, plan), ms);
  }
}
