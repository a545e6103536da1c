import type { GenerationStream } from "../api.js";
import type { Consumer } from "./dispatch.js";
import type { GenerateResult, GenerationPart } from "../inference.js";

/** Starts a generation. Called once, at the first pull. */
export type StartGeneration<Result> = (consumer: Consumer) => Promise<Result>;

/** What the request is aborted with when its consumer leaves the loop. */
class ConsumerLeft extends Error {
  override name = "AbortError";
  constructor() {
    super("The consumer stopped reading the stream.");
  }
}

interface Pull {
  resolve(step: IteratorResult<GenerationPart>): void;
  reject(error: unknown): void;
}

/** A generation that is pulled. Pieces that come faster than they are read are kept. */
export class PulledGeneration<Result extends GenerateResult> implements GenerationStream<Result> {
  readonly #start: StartGeneration<Result>;
  readonly #leave = new AbortController();
  readonly #buffer: GenerationPart[] = [];
  readonly #pulls: Pull[] = [];
  #result: Promise<Result> | undefined;
  #taken = false;
  #end: { readonly error: unknown } | "finished" | undefined;

  constructor(start: StartGeneration<Result>) {
    this.#start = start;
  }

  get result(): Promise<Result> {
    if (this.#result === undefined) {
      this.#result = this.#start({ onPart: (part) => this.#deliver(part), left: this.#leave.signal });
      this.#result.then(
        ({ finishReason, usage }) => {
          this.#deliver({ type: "finish", finishReason, usage });
          this.#finish("finished");
        },
        // this also marks the rejection as seen: who iterates, gets it there, who reads `result`, gets it there
        (error: unknown) => this.#finish({ error }),
      );
    }
    return this.#result;
  }

  get parts(): AsyncIterable<GenerationPart> {
    return { [Symbol.asyncIterator]: () => this.#iterate((part) => part) };
  }

  [Symbol.asyncIterator](): AsyncIterator<string> {
    return this.#iterate((part) => (part.type === "text" ? part.text : undefined));
  }

  /** One consumer: a second one would get every other piece. `view` leaves out pieces by returning `undefined`. */
  #iterate<T>(view: (part: GenerationPart) => T | undefined): AsyncIterator<T> {
    if (this.#taken) throw new TypeError("This stream has a consumer already; it can be iterated once.");
    this.#taken = true;
    const next = async (): Promise<IteratorResult<T>> => {
      for (;;) {
        const step = await this.#pull();
        if (step.done) return { done: true, value: undefined };
        const value = view(step.value);
        if (value !== undefined) return { done: false, value };
      }
    };
    return {
      next,
      return: () => {
        this.#leave.abort(new ConsumerLeft());
        this.#finish("finished");
        this.#buffer.length = 0;
        return Promise.resolve({ done: true, value: undefined });
      },
    };
  }

  #pull(): Promise<IteratorResult<GenerationPart>> {
    void this.result; // starts it
    const part = this.#buffer.shift();
    if (part !== undefined) return Promise.resolve({ done: false, value: part });
    if (this.#end === "finished") return Promise.resolve({ done: true, value: undefined });
    if (this.#end !== undefined) {
      const { error } = this.#end;
      this.#end = "finished"; // an iterator fails once, then it is done
      return Promise.reject(error);
    }
    return new Promise((resolve, reject) => this.#pulls.push({ resolve, reject }));
  }

  #deliver(part: GenerationPart): void {
    if (this.#end !== undefined) return;
    const pull = this.#pulls.shift();
    if (pull) pull.resolve({ done: false, value: part });
    else this.#buffer.push(part);
  }

  #finish(end: { readonly error: unknown } | "finished"): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    for (const pull of this.#pulls.splice(0)) {
      if (this.#end !== "finished") {
        pull.reject(this.#end.error);
        this.#end = "finished";
      } else pull.resolve({ done: true, value: undefined });
    }
  }
}
