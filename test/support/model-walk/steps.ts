import fc from "fast-check";
import { InsufficientMemoryError } from "../../../src/index.js";
import type { GenerationStream, RequestOptions } from "../../../src/index.js";
import { OtherThread } from "./other-thread.js";
import { HUGE, IDS, STEPS } from "./world.js";
import type { HeldLease, Id, World } from "./world.js";

const id = fc.oneof({ weight: 20, arbitrary: fc.constantFrom(...IDS) }, { weight: 1, arbitrary: fc.constant(HUGE) });
/** One of the things at hand, counted from the newest. */
const index = fc.nat(4);
const wait = {
  timeoutMs: fc.constantFrom(undefined, undefined, undefined, undefined, undefined, undefined, 20, 40_000),
  waitForLoad: fc.constantFrom(undefined, undefined, undefined, undefined, undefined, undefined, false),
};
const unload = { id, force: fc.boolean(), timeoutMs: fc.constantFrom(0, 10, 100, 60_000) };
const reading = fc.constantFrom("all" as const, "leave" as const, "drop" as const, "result" as const);

const steps = {
  register: [4, { id }],
  load: [6, { id, withSource: fc.boolean() }],
  unload: [3, unload],
  remove: [0.6, unload],
  acquire: [12, { id, ...wait }],
  "thread-acquires": [5, { id, stopAfter: fc.constantFrom(1, 2, 3, Infinity) }],
  "thread-goes-on": [6, { index }],
  release: [12, { index }],
  "take-native": [1, { index }],
  "use-lease": [4, { index, ...wait }],
  generate: [14, { id, ...wait }],
  stream: [6, { id, reading, ...wait }],
  "stream-of-lease": [2, { index, reading, ...wait }],
  leave: [4, { index }],
  crash: [1.2, { id }],
  pass: [16, { step: fc.constantFrom(...STEPS), count: fc.constantFrom(1, 1, 2, 30) }],
  fail: [
    1.2,
    {
      step: fc.constantFrom(
        "resolve" as const,
        "estimate" as const,
        "start" as const,
        "generate" as const,
        "token" as const,
      ),
      id,
    },
  ],
  "run-out": [1, { id }],
  "fail-disposal": [0.1, { id }],
  blind: [0.2, {}],
  tick: [10, { ms: fc.constantFrom(1, 20, 50, 500, 500, 2_000, 2_000, 31_000) }],
  budget: [1.5, { units: fc.constantFrom(2, 5, 8, 10, 10, 14) }],
  default: [0.4, { id }],
  ready: [0.6, { timeoutMs: fc.constantFrom(undefined, 100) }],
  plan: [0.6, { id }],
  break: [0.4, { what: fc.constantFrom("manager" as const, "tasks" as const) }],
} satisfies Record<string, readonly [number, Record<string, fc.Arbitrary<unknown>>]>;

type Steps = typeof steps;
type Values<Fields> = { readonly [Name in keyof Fields]: Fields[Name] extends fc.Arbitrary<infer V> ? V : never };
export type Step = { [Name in keyof Steps]: { readonly do: Name } & Values<Steps[Name][1]> }[keyof Steps];

const EVENTS = [
  "model:loading",
  "model:ready",
  "model:unloading",
  "model:unloaded",
  "model:error",
  "budget:refused",
  "request:start",
  "request:end",
] as const;

/**
 * A step; for how many microtasks it runs alone, for most faults live in the few after something has ended; and of what a
 * listener has to be told before it takes the step, in the middle of something else.
 */
export const plannedSteps = fc.record({
  step: fc.oneof(
    ...Object.entries(steps).map(([name, [weight, fields]]) => ({
      weight: weight * 10,
      arbitrary: fc.record({ do: fc.constant(name), ...fields }) as unknown as fc.Arbitrary<Step>,
    })),
  ),
  gap: fc.oneof(fc.constant("settled" as const), fc.nat(13)),
  at: fc.oneof({ weight: 10, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary: fc.constantFrom(...EVENTS) }),
});
export type PlannedStep = typeof plannedSteps extends fc.Arbitrary<infer P> ? P : never;

export function begin(world: World, { step, at }: PlannedStep): void {
  world.eventsInTurn = 0;
  // no time passes while a listener runs
  if (at === undefined || step.do === "tick" || step.do === "break") take(world, step);
  else world.models.once(at, () => world.isEnding || take(world, step));
}

function take(world: World, step: Step): void {
  const { models, backend, clock, gates, leases, calls } = world;
  switch (step.do) {
    case "register":
      world.call(`register ${step.id}`, undefined, (signal) =>
        models.register(step.id, step.id, { ...world.optionsOf(step.id), signal }),
      );
      break;
    case "load":
      world.call(`load ${step.id}`, step.id, (signal) =>
        step.withSource
          ? models.load(step.id, step.id, { ...world.optionsOf(step.id), signal })
          : models.load(step.id, undefined, { signal }),
      );
      break;
    case "unload":
    case "remove":
      world.order(`${step.do} ${step.id}`, models[step.do](step.id, { force: step.force, timeoutMs: step.timeoutMs }));
      break;
    case "acquire":
      acquire(world, step.id, step);
      break;
    case "thread-acquires": {
      const life = world.lives.findLast(({ modelId, live }) => modelId === step.id && live?.block.isReady);
      if (life?.live) world.threads.push(new OtherThread(life.live, clock.now(), step.stopAfter));
      break;
    }
    case "thread-goes-on": {
      const thread = world.threads.at(-1 - step.index);
      if (thread?.state === "suspended") thread.resume();
      else thread?.release(clock.now());
      break;
    }
    case "release":
      leases.splice(-1 - step.index, 1)[0]?.lease.release();
      break;
    case "take-native":
      takeNative(leases.at(-1 - step.index));
      break;
    case "use-lease": {
      const held = leases.at(-1 - step.index);
      if (held) generate(world, held.lease.modelId, step, (options) => held.lease.generate("hi", options));
      break;
    }
    case "generate":
      generate(world, step.id, step, (options) => models.generate(step.id, "hi", options));
      break;
    case "stream":
      read(world, step.id, step, (options) => models.stream(step.id, "hi", options));
      break;
    case "stream-of-lease": {
      const held = leases.at(-1 - step.index);
      if (held) read(world, held.lease.modelId, step, (options) => held.lease.stream("hi", options));
      break;
    }
    case "leave": {
      const reason = { why: "the caller had enough" };
      world.reasons.add(reason);
      calls
        .filter(({ isSettled, controller }) => !isSettled && controller?.signal.aborted === false)
        .at(-1 - step.index)
        ?.controller?.abort(reason);
      break;
    }
    case "crash":
      if (models.isLoaded(step.id)) backend.crash(step.id);
      break;
    case "pass":
      gates[step.step]?.pass(step.count);
      break;
    case "fail":
      backend.fail(step.step, new Error(`${step.step} failed`), step.id, 1);
      break;
    case "run-out":
      backend.fail(
        "start",
        new InsufficientMemoryError({
          modelId: step.id,
          device: "ram",
          requiredBytes: 2,
          availableBytes: 1,
          evictableBytes: 0,
        }),
        step.id,
        1,
      );
      break;
    case "fail-disposal":
      backend.fail("dispose", new Error("dispose failed"), step.id, 1);
      break;
    case "blind":
      world.toggleDevices();
      break;
    case "tick":
      clock.increment(step.ms);
      break;
    case "budget":
      world.order("setMemoryBudget", models.setMemoryBudget(world.budget(step.units)));
      break;
    case "default":
      world.order("setDefault", models.setDefault(step.id));
      break;
    case "ready":
      world.call("ready", undefined, (signal) => models.ready({ timeoutMs: step.timeoutMs, signal }));
      break;
    case "plan":
      world.order("plan", models.plan(step.id, world.optionsOf(step.id)));
      break;
    case "break":
      // the next that comes to it
      world.nextToBreak = step.what;
      if (step.what === "manager") world.order("setDefault", models.setDefault("a"));
      clock.increment(6_000); // so that the restart limit is not what is tested
      break;
  }
}

function acquire(world: World, id: Id, { timeoutMs, waitForLoad }: RequestOptions): void {
  world.call(
    `acquire ${id}`,
    id,
    (signal) => world.models.acquire(id, { timeoutMs, waitForLoad, signal }),
    (lease) => {
      if (world.isEnding) lease.release();
      else world.leases.push({ lease, nativeTaken: false });
    },
  );
}

function takeNative(held: HeldLease | undefined): void {
  if (held === undefined) return;
  try {
    void held.lease.native;
    held.nativeTaken = true;
  } catch {
    // it was taken away already
  }
}

type Waiting = Pick<RequestOptions, "timeoutMs" | "waitForLoad">;

function generate(
  world: World,
  id: string,
  { timeoutMs, waitForLoad }: Waiting,
  begin: (options: RequestOptions) => Promise<{ readonly modelId: string; readonly text: string }>,
): void {
  world.call(
    `generate ${id}`,
    id,
    (signal) => begin({ timeoutMs, waitForLoad, signal }),
    (result) => {
      if (result.modelId !== id || result.text !== world.answerOf(id)) world.violated(`${id} gave another's answer`);
    },
  );
}

function read(
  world: World,
  id: string,
  { timeoutMs, waitForLoad, reading }: Waiting & { readonly reading: "all" | "leave" | "drop" | "result" },
  begin: (options: RequestOptions & { readonly idleConsumerMs: number }) => GenerationStream,
): void {
  world.call(
    `${reading} of a stream of ${id}`,
    id,
    async (signal) => {
      const stream = begin({ timeoutMs, waitForLoad, signal, idleConsumerMs: 5_000 });
      if (reading === "result") return (await stream.result).text;
      if (reading === "drop") return (await stream[Symbol.asyncIterator]().next()).value ?? "";
      let text = "";
      for await (const piece of stream) {
        text += piece;
        if (reading === "leave") break;
      }
      return text;
    },
    (text) => {
      const answer = world.answerOf(id);
      const isRight = reading === "all" || reading === "result" ? text === answer : answer.startsWith(text);
      if (!isRight) world.violated(`a stream of ${id} gave "${text.slice(0, 40)}"`);
    },
  );
}
