import type {
  Backend,
  Backing,
  BackingExit,
  Estimate,
  MemoryNeed,
  ModelProfile,
  ResolvedModel,
  StartContext,
  StartSpec,
} from "../backends/backend.js";
import { SourceUnavailableError } from "../errors.js";
import type { Capability, DeviceInfo, ModelId, ModelSource } from "../model.js";
import { FakeBacking } from "./fake-backing.js";
import type { FakeReply } from "./fake-reply.js";
import { Gate } from "./gate.js";

/** A pretended model. Sizes are bytes; everything has a default. */
export interface FakeModel extends Partial<Omit<MemoryNeed, "shared">> {
  /**
   * Weights in `ramBytes` that ids of this source share, if they have as many layers on the GPU; with them all of
   * `gpuWeightsBytes` and `mappedBytes`. Default: nothing is shared.
   */
  readonly sharedBytes?: number;
  /** Default: generate, chat, embed and rank. */
  readonly supports?: readonly Capability[];
  /** Default: generate and chat, as far as supported; else all of `supports`. */
  readonly defaultCapabilities?: readonly Capability[];
  readonly trainedContextSize?: number;
  /** What it answers, whatever a request's `jsonSchema` or `grammar` says. Default: "one two three four five six seven eight". */
  readonly reply?: string | FakeReply | ((prompt: string) => string | FakeReply);
  /** What the engine reports after the load. Default: what was estimated. */
  readonly measured?: Partial<MemoryNeed>;
}

/** Where a test can hold a fake model or make it fail. `token` is before each word of an answer. */
export type FakeStep = "resolve" | "estimate" | "start" | "generate" | "token" | "embed" | "rank" | "dispose";

export interface FakeBackendOptions {
  /** Known sources; any other is `source_unavailable`. Default: every source is known, with the defaults of {@link FakeModel}. */
  readonly models?: Readonly<Record<ModelSource, FakeModel>>;
  /** Default 16 GiB. */
  readonly ramBytes?: number;
  /** Memory of each pretended GPU. Default: none. */
  readonly gpuBytes?: readonly number[];
}

const STEPS: readonly FakeStep[] = ["resolve", "estimate", "start", "generate", "token", "embed", "rank", "dispose"];

/** A misspelt name would make a test pass for the wrong reason. */
function checkNames(what: string, names: readonly string[], known: readonly string[]): void {
  const unknown = names.find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`Unknown ${what} "${unknown}"; known are ${known.join(", ")}.`);
}

const DEFAULT_REPLY = "one two three four five six seven eight";

interface Rule {
  readonly step: FakeStep;
  readonly source: ModelSource | undefined;
  readonly pass: (signal: AbortSignal | undefined) => Promise<void>;
}

/**
 * An engine without an engine, for tests of code that uses the supervisor: instant by default, and every outcome can be
 * driven. Steps can be held or failed per source; backings can be made to crash; the machine's memory is pretended.
 *
 * @example
 * const backend = new FakeBackend();
 * const gate = backend.hold("start", "a.gguf");
 * await using models = await ModelSupervisor.start({ backend });
 * const loading = models.load("a", "a.gguf");
 * await gate.arrived();
 * gate.open();
 * await loading;
 */
export class FakeBackend implements Backend {
  readonly name = "fake";
  readonly #options: FakeBackendOptions;
  readonly #rules: Rule[] = [];
  readonly #live = new Map<FakeBacking, StartSpec>();
  /** What has happened, step by step: `start a`, `dispose a`, for each backing. */
  readonly log: string[] = [];
  /** Disposals while a request ran on the backing. A correct caller keeps this at 0. */
  disposalsInFlight = 0;
  /** The most copies of one source that were ever alive together. */
  maxLiveCopies = 0;
  /** The last spec and context that a load came with. */
  lastStart: { readonly spec: StartSpec; readonly maxThreads: number } | undefined;
  /** Devices as the manager is told; may be changed at any time. Set to an error to make the call reject. */
  deviceList: readonly DeviceInfo[] | Error;

  constructor(options: FakeBackendOptions = {}) {
    checkNames("option", Object.keys(options), ["models", "ramBytes", "gpuBytes"]);
    this.#options = options;
    const { ramBytes = 16 * 1024 ** 3, gpuBytes = [] } = options;
    this.deviceList = [
      { device: "ram", name: "fake RAM", totalBytes: ramBytes, freeBytes: ramBytes },
      ...gpuBytes.map(
        (bytes, index) =>
          ({ device: `gpu:${index}`, name: `fake GPU ${index}`, totalBytes: bytes, freeBytes: bytes }) as const,
      ),
    ];
  }

  /** Holds everyone who comes to this step (of this source, or of any) until the gate lets them go. */
  hold(step: FakeStep, source?: ModelSource, options: { readonly ignoreAbort?: boolean } = {}): Gate {
    checkNames("step", [step], STEPS);
    const gate = new Gate();
    this.#rules.push({ step, source, pass: (signal) => gate.enter(options.ignoreAbort ? undefined : signal) });
    return gate;
  }

  /** Makes this step fail, from now on or (`times`) so many times. */
  fail(step: FakeStep, error: unknown, source?: ModelSource, times = Infinity): void {
    checkNames("step", [step], STEPS);
    let left = times;
    this.#rules.push({
      step,
      source,
      pass: async () => {
        if (left-- > 0) throw error;
      },
    });
  }

  /** Ends the backing of this model as a crash. */
  crash(modelId: ModelId, exit: Partial<Omit<Extract<BackingExit, { reason: "crashed" }>, "reason">> = {}): void {
    const backing = [...this.#live].findLast(([, spec]) => spec.modelId === modelId)?.[0];
    if (backing === undefined) throw new TypeError(`No backing of model "${modelId}" is alive.`);
    backing.crash({ cause: new Error("crashed by the test"), ...exit });
  }

  /** Those that were started and not disposed, oldest first. */
  backings(): FakeBacking[] {
    return [...this.#live.keys()];
  }

  /** Backings that were started and not disposed. */
  get liveCopies(): number {
    return this.#live.size;
  }

  /** Bytes that the backings hold which were started and not disposed; shared weights once. */
  get liveBytes(): number {
    const weights = new Map<string, number>();
    let bytes = 0;
    for (const backing of this.#live.keys()) {
      const { ramBytes, gpuWeightsBytes, gpuContextBytes, shared } = backing.memory();
      const sharedBytes = shared === undefined ? 0 : shared.ramBytes + gpuWeightsBytes;
      if (shared !== undefined) weights.set(shared.key, sharedBytes);
      bytes += ramBytes + gpuWeightsBytes + gpuContextBytes - sharedBytes;
    }
    return [...weights.values()].reduce((sum, each) => sum + each, bytes);
  }

  /** Whether this life of the model has a backing that was neither disposed nor crashed. */
  isAlive(modelId: ModelId, incarnation: number): boolean {
    return [...this.#live].some(
      ([backing, spec]) => spec.modelId === modelId && spec.incarnation === incarnation && !backing.hasEnded,
    );
  }

  /** Requests that run now, on all backings. */
  get requestsInFlight(): number {
    return [...this.#live.keys()].reduce((sum, backing) => sum + backing.requestsInFlight, 0);
  }

  async devices(): Promise<readonly DeviceInfo[]> {
    if (this.deviceList instanceof Error) throw this.deviceList;
    return this.deviceList;
  }

  async resolve(source: ModelSource, _options: unknown, signal: AbortSignal): Promise<ResolvedModel> {
    await this.#step("resolve", source, signal);
    const model = this.#model(source);
    const supports = model.supports ?? ["generate", "chat", "embed", "rank"];
    const talks = supports.filter((capability) => capability === "generate" || capability === "chat");
    return {
      source,
      sizeBytes: model.ramBytes ?? 1,
      supports,
      defaultCapabilities: model.defaultCapabilities ?? (talks.length > 0 ? talks : supports),
      trainedContextSize: model.trainedContextSize ?? 4096,
    };
  }

  async estimate({ source }: ResolvedModel, profile: ModelProfile): Promise<Estimate> {
    await this.#step("estimate", source);
    const gpuLayers = typeof profile.gpuLayers === "number" ? profile.gpuLayers : this.#gpuCount() > 0 ? 99 : 0;
    return { ...this.#need(source, gpuLayers), gpuLayers };
  }

  async start(spec: StartSpec, { signal, onProgress, maxThreads, queueLimit }: StartContext): Promise<Backing> {
    const { source } = spec.model;
    await this.#step("start", source, signal);
    signal.throwIfAborted();
    onProgress?.(1);
    this.lastStart = { spec, maxThreads };
    const { reply = DEFAULT_REPLY, measured } = this.#model(source);
    const script = {
      memory: { ...this.#need(source, spec.gpuLayers), ...measured },
      reply: typeof reply === "function" ? reply : () => reply,
      step: (step: FakeStep, stepSignal?: AbortSignal) => this.#step(step, source, stepSignal),
      onDisposed: (requestsInFlight: number) => {
        this.#live.delete(backing);
        this.log.push(`dispose ${spec.modelId}`);
        if (requestsInFlight > 0) this.disposalsInFlight += 1;
      },
    };
    const backing = new FakeBacking(spec, script, queueLimit);
    this.#live.set(backing, spec);
    this.log.push(`start ${spec.modelId}`);
    const copies = [...this.#live.values()].filter((other) => other.model.source === source).length;
    this.maxLiveCopies = Math.max(this.maxLiveCopies, copies);
    return backing;
  }

  #model(source: ModelSource): FakeModel {
    const { models } = this.#options;
    const model = models === undefined ? {} : models[source];
    if (model === undefined) throw new SourceUnavailableError(source, "the fake backend has no such model");
    return model;
  }

  /** Without layers on a GPU everything is RAM, as with a real engine. */
  #need(source: ModelSource, gpuLayers: number): MemoryNeed {
    const model = this.#model(source);
    const { ramBytes = 0, gpuWeightsBytes = 0, gpuContextBytes = 0, mappedBytes = 0, sharedBytes } = model;
    const key = `${source} with ${gpuLayers} layers`;
    const sharedIn = (ofGpu: number) => sharedBytes !== undefined && { shared: { key, ramBytes: sharedBytes + ofGpu } };
    if (gpuLayers > 0) return { ramBytes, gpuWeightsBytes, gpuContextBytes, mappedBytes, ...sharedIn(0) };
    return {
      ramBytes: ramBytes + gpuWeightsBytes + gpuContextBytes,
      gpuWeightsBytes: 0,
      gpuContextBytes: 0,
      mappedBytes,
      ...sharedIn(gpuWeightsBytes),
    };
  }

  #gpuCount(): number {
    return this.deviceList instanceof Error ? 0 : this.deviceList.length - 1;
  }

  async #step(step: FakeStep, source: ModelSource, signal?: AbortSignal): Promise<void> {
    for (const rule of this.#rules) {
      if (rule.step === step && (rule.source === undefined || rule.source === source)) await rule.pass(signal);
    }
    signal?.throwIfAborted();
  }
}
