/**
 * How prompts and those that decode share the time of a context. A step with a slice of a long prompt is heavy. After it
 * come light steps, without any long prompt, for a share of the time that it took: so a stream goes on, and a short request
 * is answered, while a long prompt is evaluated, which is not held up by more than that share.
 */
import { SliceSizes } from "./slice-sizes.js";
import { LIGHT_TOKENS, prefillTokens, type Progress, type Work } from "./step-plan.js";

/** Light time for each heavy millisecond. */
const LIGHT_SHARE = 0.15;

export class Pace {
  readonly #sizes: SliceSizes;
  readonly #hasLightSteps: boolean;
  /** Light time that is left. */
  #lightMs = 0;
  #hasLong = false;

  constructor(batchSize: number) {
    this.#sizes = new SliceSizes(batchSize);
    this.#hasLightSteps = batchSize >= LIGHT_TOKENS;
  }

  /** What kind of step comes next. */
  next(slots: readonly Progress[]): { readonly isLight: boolean; readonly sliceTokens: number } {
    const left = slots.map((slot) => (slot.decodes ? 0 : slot.promptTokens - slot.evaluatedTokens));
    this.#hasLong = left.some((tokens) => tokens > LIGHT_TOKENS);
    const decodes = slots.some((slot) => slot.decodes && !slot.isPaused);
    const hasLight = decodes || left.some((tokens) => tokens > 0 && tokens <= LIGHT_TOKENS);
    if (!this.#hasLong) this.#lightMs = 0;
    const isLight = this.#hasLightSteps && this.#hasLong && hasLight && this.#lightMs > 0;
    return { isLight, sliceTokens: isLight ? LIGHT_TOKENS : this.#sizes.choose(decodes) };
  }

  /** A step that was planned like this has taken so long. */
  record(slots: readonly Progress[], plan: readonly Work[], isLight: boolean, ms: number): void {
    if (isLight) this.#lightMs -= ms;
    else if (this.#hasLong) this.#lightMs += LIGHT_SHARE * ms;
    if (!isLight) this.#sizes.record(prefillTokens(slots, plan), ms);
  }
}
