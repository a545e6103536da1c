/** What a measurement of layouts decodes: texts that go on for ever, on the sequences of small contexts. */
import type { LlamaContext, LlamaContextSequence, LlamaModel, Token } from "node-llama-cpp";
import { allSettled } from "../all-settled.js";
import { createGenerationContext, newSequence } from "../contexts.js";
import { slotsOf, type Spread } from "./layout.js";

/** Enough for a turn, and small: what is measured is the engine, not the attention over a long text. */
const CONTEXT_TOKENS = 64;
/** As small as the engine likes it, for small compute buffers: two spreads have theirs at once. */
const BATCH_TOKENS = 32;

/** Nothing can be said: the engine has something else to do, so that figures would be wrong, or it failed on a step. */
export class NotMeasurable extends Error {}

/** Makes the contexts of a spread, warmed up, and gives them back, whatever happens. */
export async function withLanes<Result>(
  { contexts, threads }: Spread,
  { model, slots, check }: { readonly model: LlamaModel; readonly slots: number; readonly check: () => void },
  work: (contexts: readonly Lanes[]) => Promise<Result>,
): Promise<Result> {
  const made: Lanes[] = [];
  try {
    for (const sequences of slotsOf(slots, contexts)) {
      const batchSize = Math.max(BATCH_TOKENS, sequences);
      const plan = { kind: "slots", contextSize: CONTEXT_TOKENS, sequences, batchSize, threads } as const;
      const lanes = new Lanes(await createGenerationContext(model, plan), check);
      made.push(lanes);
      lanes.open(sequences);
    }
    await allSettled(made.map((lanes) => lanes.step(Infinity)));
    return await work(made);
  } finally {
    await allSettled(made.map((lanes) => lanes.dispose()));
  }
}

interface Lane {
  readonly sequence: LlamaContextSequence;
  text: AsyncGenerator<Token, void, void | Token | Token[]>;
}

/** The sequences of one context, each with a text that goes on for ever. */
export class Lanes {
  readonly #context: LlamaContext;
  readonly #check: () => void;
  #start: readonly Token[] = [];
  #lanes: readonly Lane[] = [];
  #next = 0;

  constructor(context: LlamaContext, check: () => void) {
    this.#context = context;
    this.#check = check;
  }

  /** Apart from the constructor, so that a context in which this fails has an owner already. */
  open(count: number): void {
    const { model } = this.#context;
    const { bos } = model.tokens;
    this.#start = bos === null ? model.tokenize("a").slice(0, 1) : [bos];
    this.#lanes = Array.from({ length: count }, () => {
      const sequence = newSequence(this.#context);
      return { sequence, text: this.#begin(sequence) };
    });
  }

  /** All texts begin anew: a step takes longer the more is in the context, and every turn is to find the same. */
  async restart(): Promise<void> {
    await allSettled(this.#lanes.map((lane) => this.#restart(lane)));
  }

  /** Advances the next `width` of them. */
  async step(width: number): Promise<void> {
    this.#check();
    const from = this.#next;
    const turn = [...this.#lanes.slice(from), ...this.#lanes.slice(0, from)].slice(0, width);
    this.#next = (from + turn.length) % this.#lanes.length;
    try {
      await allSettled(turn.map((lane) => this.#advance(lane)));
    } catch (cause) {
      throw new NotMeasurable("a step failed", { cause });
    }
  }

  async dispose(): Promise<void> {
    await Promise.allSettled(this.#lanes.map(({ text }) => text.return()));
    await this.#context.dispose();
  }

  #begin(sequence: LlamaContextSequence) {
    return sequence.evaluate([...this.#start], { temperature: 0 });
  }

  /** At the end of the text, or of the context, it begins again. */
  async #advance(lane: Lane): Promise<void> {
    if (lane.sequence.nextTokenIndex < CONTEXT_TOKENS - 1 && !(await lane.text.next()).done) return;
    await this.#restart(lane);
  }

  async #restart(lane: Lane): Promise<void> {
    await lane.text.return();
    await lane.sequence.clearHistory();
    lane.text = this.#begin(lane.sequence);
  }
}
