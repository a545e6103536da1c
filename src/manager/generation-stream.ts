import type { GenerationStream } from "../api.js";
import type { Consumer } from "./in-flight-request.js";
import type { GenerateResult, GenerationPart } from "../inference.js";
import { PartBuffer, type View } from "./part-buffer.js";

/** Starts a generation. Called once, at the first pull. */
export type StartGeneration<Result> = (consumer: Consumer) => Promise<Result>;

/** What the request is aborted with when its consumer leaves the loop. */
class ConsumerLeft extends Error {
  override name = "AbortError";
  constructor() {
    super("The consumer stopped reading the stream.");
  }
}

/** A generation that is pulled. Pieces that come faster than they are read are kept, up to a limit. */
export class PulledGeneration<Result extends GenerateResult> implements GenerationStream<Result> {
  readonly #start: StartGeneration<Result>;
  readonly #buffer = new PartBuffer();
  #result: Promise<Result> | undefined;
  #taken = false;

  constructor(start: StartGeneration<Result>) {
    this.#start = start;
  }

  get result(): Promise<Result> {
    if (this.#result === undefined) {
      this.#result = this.#start(this.#buffer);
      this.#result.then(
        ({ finishReason, usage }) => {
          this.#buffer.onPart({ type: "finish", finishReason, usage });
          this.#buffer.finish("finished");
        },
        // this also marks the rejection as seen: who iterates, gets it there, who reads `result`, gets it there
        (error: unknown) => this.#buffer.finish({ error }),
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

  /** One consumer: a second one would get every other piece. */
  #iterate<T>(view: View<T>): AsyncIterator<T> {
    if (this.#taken) throw new TypeError("This stream has a consumer already; it can be iterated once.");
    this.#taken = true;
    this.#buffer.beginReading();
    return {
      next: () => {
        void this.result; // starts it
        return this.#buffer.pull(view);
      },
      return: () => {
        this.#buffer.leave(new ConsumerLeft());
        return Promise.resolve({ done: true, value: undefined });
      },
    };
  }
}
