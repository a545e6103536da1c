/** Whatever comes in whatever order: a server of slots ends every request, once, with the right text, and is whole after it. */
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { TotalQueue } from "../../../src/manager/queue-limit.js";
import type { Priority } from "../../../src/inference.js";
import { BAD, FakeEngine, job, serve, tokens } from "./slot-server-fixture.js";

const RUNS = Number(process.env["SLOT_SERVER_RUNS"] ?? 500);
/** More steps than any of these runs takes; after them a request that has not ended never will. */
const MOST_STEPS = 2_000;

/** A capital letter that depends on all that a sequence holds, so that a foreign token anywhere in it shows in the text. */
const say = (held: readonly number[]) => 65 + (held.reduce((sum, id) => (sum * 31 + id) % 997, 7) % 26);

function expectedText(prompt: readonly number[], length: number): string {
  const held = [...prompt];
  for (let count = 0; count < length; count++) held.push(say(held));
  return String.fromCharCode(...held.slice(prompt.length));
}

const submit = fc.record({
  type: fc.constant("submit"),
  /** Prompts begin alike, so that caches are gone on from. */
  common: fc.integer({ min: 0, max: 40 }),
  own: fc.integer({ min: 1, max: 200 }),
  isBad: fc.nat({ max: 9 }).map((chance) => chance === 0),
  maxTokens: fc.integer({ min: 1, max: 6 }),
  priority: fc.constantFrom<Priority>("interactive", "system", "background"),
  scope: fc.constantFrom("", "a", "b"),
  /** The reader falls behind at so many pieces. */
  pausesAt: fc.option(fc.integer({ min: 0, max: 3 })),
  /** The caller leaves while a piece is handed over. */
  abortsAt: fc.option(fc.integer({ min: 1, max: 3 }), { freq: 5 }),
});
const which = fc.nat({ max: 30 });
const command = fc.oneof(
  { weight: 5, arbitrary: submit },
  { weight: 2, arbitrary: fc.record({ type: fc.constant("abort"), which }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant("pause"), which }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant("resume"), which }) },
  { weight: 1, arbitrary: fc.record({ type: fc.constant("fail"), which }) },
  { weight: 3, arbitrary: fc.record({ type: fc.constant("step"), times: fc.integer({ min: 1, max: 4 }) }) },
);
const setup = fc.record({
  slots: fc.integer({ min: 1, max: 4 }),
  contexts: fc.integer({ min: 1, max: 2 }),
  /** Slots that decode in one step. */
  width: fc.integer({ min: 1, max: 4 }),
  maxQueue: fc.integer({ min: 0, max: 6 }),
  limit: fc.integer({ min: 0, max: 6 }),
  needsCheckpoints: fc.boolean(),
});

const step = () => new Promise<void>((resolve) => setImmediate(resolve));

describe("SlotServer", () => {
  it("ends every request of a random course exactly, and keeps nothing of it", async () => {
    await fc.assert(
      fc.asyncProperty(setup, fc.array(command, { maxLength: 40 }), async (given, commands) => {
        const engine = new FakeEngine(say);
        const others = Array.from({ length: given.contexts - 1 }, () => new FakeEngine(say));
        const engines = [engine, ...others];
        for (const one of engines) one.needsCheckpoints = given.needsCheckpoints;
        const queueLimit = new TotalQueue(given.limit);
        const { slots, width, maxQueue } = given;
        const decodeWidths = Array.from({ length: slots + 1 }, (_, active) => Math.min(active, width));
        const { server, broken } = serve({ slots, maxQueue, queueLimit, decodeWidths, engine, others });
        const requests: Request[] = [];
        const at = (index: number) => requests[index % Math.max(1, requests.length)];

        for (const each of commands) {
          if (each.type === "submit") requests.push(new Request(server, each));
          else if (each.type === "abort") at(each.which)?.abort();
          else if (each.type === "pause") at(each.which)?.pause();
          else if (each.type === "resume") at(each.which)?.resume();
          else if (each.type === "fail") engines.forEach((one) => void (one.failsOnce = each.which % 2 === 0));
          else for (let count = 0; count < each.times; count++) await step();
        }
        // who has left does not wait for anybody's reader
        const gone = requests.filter(({ isAborted }) => isAborted);
        await untilEnded(gone, () => undefined);
        expect(gone.filter(({ outcome }) => outcome === undefined)).toEqual([]);
        await untilEnded(requests, (request) => request.resume());

        expect(requests.map(({ outcome }) => outcome)).toEqual(requests.map(({ right }) => right));
        // who is alone in a step that fails is to blame; who is not is tried again
        const failures = commands.filter(({ type }) => type === "fail").length * engines.length;
        expect(requests.filter(({ wasUnlucky }) => wasUnlucky).length).toBeLessThanOrEqual(failures);
        expect(engines.flatMap(({ collisions }) => collisions)).toEqual([]);
        expect({ queued: server.queued, total: queueLimit.waiting, broken }).toEqual({
          queued: 0,
          total: 0,
          broken: [],
        });
        const steps = engines.map(({ events }) => events.length);
        await step();
        expect(engines.map(({ events }) => events.length)).toEqual(steps);
        for (const one of engines) one.failsOnce = false;
        const last = Array.from({ length: slots * given.contexts }, () => new Request(server, PLAIN));
        await untilEnded(last, (request) => request.resume());
        expect(last.map(({ outcome }) => outcome)).toEqual(last.map(({ right }) => right));
      }),
      { numRuns: RUNS },
    );
  });
});

type Submit = typeof submit extends fc.Arbitrary<infer Value> ? Value : never;

const PLAIN: Submit = {
  type: "submit",
  common: 0,
  own: 3,
  isBad: false,
  maxTokens: 2,
  priority: "interactive",
  scope: "",
  pausesAt: null,
  abortsAt: null,
};

/** Until each has an outcome; `between` is called before each step. */
async function untilEnded(requests: readonly Request[], between: (request: Request) => void): Promise<void> {
  for (let count = 0; count < MOST_STEPS && requests.some(({ outcome }) => outcome === undefined); count++) {
    requests.forEach(between);
    await step();
  }
}

const FAILURE = "Error: Eval has failed";
let made = 0;

/** A request, what became of it, and what should have. */
class Request {
  readonly #controller = new AbortController();
  readonly #text: string;
  readonly #isBad: boolean;
  readonly #job;
  #isPaused = false;
  #pieces = "";
  outcome: string | undefined;

  constructor(server: ReturnType<typeof serve>["server"], options: Submit) {
    const { common, own, isBad, maxTokens, pausesAt, abortsAt } = options;
    const id = 1_000 + made++;
    const prompt = [...Array<number>(common).fill(1), ...Array<number>(own).fill(id), ...(isBad ? [BAD] : [])];
    this.#isBad = isBad;
    this.#text = expectedText(prompt, maxTokens);
    let count = 0;
    this.#job = job({
      ...options,
      prompt: tokens(...prompt),
      signal: this.#controller.signal,
      isPaused: () => this.#isPaused,
      onText: (piece) => {
        if (this.outcome !== undefined) this.outcome = "spoke after its end";
        this.#pieces += piece;
        count++;
        if (count === pausesAt) this.pause();
        if (count === abortsAt) this.abort();
      },
    });
    if (pausesAt === 0) this.pause();
    void server.submit(this.#job).then(
      ({ text }) => this.#settle(`${text}, said ${this.#pieces}`),
      (error: unknown) => this.#settle(String(error)),
    );
  }

  /** What the outcome may be: there is one only, but for a request that was aborted or turned away. */
  get right(): string {
    const text = `${this.#text}, said ${this.#text}`;
    if (this.outcome === "left" && this.isAborted) return this.outcome;
    if (this.outcome?.startsWith("QueueFullError") || this.wasUnlucky) return this.outcome ?? "";
    return this.#isBad ? FAILURE : text;
  }

  get isAborted(): boolean {
    return this.#controller.signal.aborted;
  }

  /** The engine failed on it, and not because of it. */
  get wasUnlucky(): boolean {
    return !this.#isBad && this.outcome === FAILURE;
  }

  abort(): void {
    this.#controller.abort("left");
  }

  pause(): void {
    this.#isPaused = true;
  }

  /** Tells the server once, as a reader does: it is not to be helped out of a sleep. */
  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#job.request.onResume?.();
  }

  #settle(outcome: string): void {
    this.outcome = this.outcome === undefined ? outcome : "settled twice";
  }
}
