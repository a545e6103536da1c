/** The weights in memory: one copy for all models of one file and placement, given back with the last of them (ADR 0022). */
import { unlessAborted } from "./unless-aborted.js";

/** The engine's model object, as far as it matters here. */
interface NativeWeights {
  readonly disposed: boolean;
  dispose(): Promise<void>;
}

/** What equal ones stand for can be the same bytes in memory. */
export interface WantedWeights {
  /** The files as they are now, and how they are read. */
  readonly identity: string;
  readonly gpuLayers: number;
}

type OnProgress = (fraction: number) => void;

interface LoadContext {
  readonly signal: AbortSignal;
  readonly onProgress?: OnProgress | undefined;
}

type Load<Native> = (context: LoadContext) => Promise<Native>;

/** One use of a copy. */
interface Share<Native> {
  /** {@link SharedWeights.keyOf} this copy. */
  readonly key: string;
  /** Waits for the load. Rejects with its error, or at once with the signal's reason. */
  loaded(): Promise<Native>;
  /** To be called once, whatever came of it. For the last use it resolves when the memory is free. */
  release(): Promise<void>;
}

export class SharedWeights<Native extends NativeWeights> {
  readonly #copies = new Map<string, Copy<Native>>();
  /** How many copies could not be disposed. Their bytes stay where they are: the next copy is not the same bytes. */
  readonly #lost = new Map<string, number>();

  /** The same key: the same bytes in memory. */
  keyOf(wanted: WantedWeights): string {
    return `${textOf(wanted)} #${this.#lost.get(textOf(wanted)) ?? 0}`;
  }

  /** How many layers a copy that is there has on the GPU. */
  loadedLayers(identity: string): number | undefined {
    return [...this.#copies.values()].find((copy) => copy.isOpen && copy.wanted.identity === identity)?.wanted
      .gpuLayers;
  }

  /**
   * Joins the copy that is there, or is being loaded; else begins a load, which is aborted when nobody waits for it any more.
   * Where the last copy is just being disposed, it waits for that: there are never two. Rejects with the signal's reason, and
   * then there is nothing to release.
   */
  async join(wanted: WantedWeights, { signal, onProgress }: LoadContext, load: Load<Native>): Promise<Share<Native>> {
    signal.throwIfAborted();
    let known = this.#copies.get(this.keyOf(wanted));
    while (known?.isOpen === false) {
      // how it ended is told to those who used it
      const ended = known.gone.catch(() => undefined);
      await unlessAborted(ended, signal);
      known = this.#copies.get(this.keyOf(wanted));
    }
    const copy = known ?? this.#begin(wanted, onProgress !== undefined, load);
    // two who wait may have passed the same function
    const listener: OnProgress = (fraction) => onProgress?.(fraction);
    copy.enter(listener);
    return {
      key: copy.key,
      async loaded() {
        const native = await unlessAborted(copy.loaded, signal);
        // one who came later may have heard nothing yet
        if (known !== undefined) onProgress?.(1);
        return native;
      },
      release: () => copy.leave(listener),
    };
  }

  #begin(wanted: WantedWeights, isHeard: boolean, load: Load<Native>): Copy<Native> {
    const copy = new Copy(this.keyOf(wanted), wanted, isHeard, load);
    this.#copies.set(copy.key, copy);
    // first of all who wait for its end: they find it gone
    copy.gone
      .catch(() => this.#lost.set(textOf(wanted), (this.#lost.get(textOf(wanted)) ?? 0) + 1))
      .finally(() => this.#copies.delete(copy.key));
    return copy;
  }
}

function textOf({ identity, gpuLayers }: WantedWeights): string {
  return `${gpuLayers} layers of ${identity}`;
}

class Copy<Native extends NativeWeights> {
  readonly key: string;
  readonly wanted: WantedWeights;
  readonly loaded: Promise<Native>;
  /** Settles when nothing of it is in memory any more; rejects if its disposal failed. */
  readonly gone: Promise<void>;
  readonly #controller = new AbortController();
  readonly #unused: Promise<void>;
  /** Of each use. */
  readonly #listeners = new Set<OnProgress>();
  #native: Native | undefined;

  constructor(key: string, wanted: WantedWeights, isHeard: boolean, load: Load<Native>) {
    const { signal } = this.#controller;
    const onProgress: OnProgress = (fraction) => {
      for (const listener of this.#listeners) listener(fraction);
    };
    this.key = key;
    this.wanted = wanted;
    this.#unused = new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
    this.loaded = load({ signal, onProgress: isHeard ? onProgress : undefined });
    this.gone = this.#live();
  }

  /** Whether one more may use it: not what is being given back, nor what was disposed from outside. */
  get isOpen(): boolean {
    return !this.#controller.signal.aborted && this.#native?.disposed !== true;
  }

  enter(listener: OnProgress): void {
    this.#listeners.add(listener);
  }

  async leave(listener: OnProgress): Promise<void> {
    this.#listeners.delete(listener);
    if (this.#listeners.size > 0) return;
    this.#controller.abort();
    await this.gone;
  }

  async #live(): Promise<void> {
    try {
      this.#native = await this.loaded;
    } catch {
      return; // those who wait are told, and nothing is left
    }
    await this.#unused;
    await this.#native.dispose();
  }
}
