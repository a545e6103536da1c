/** The client: what an application holds. Lifecycle calls go through the mailbox; reads and inference go to the table. */
import type {
  Clock,
  CloseReason,
  GenerationStream,
  Lease,
  LoadOptions,
  Logger,
  ModelManager,
  ModelManagerEvents,
  ModelOptions,
  ModelSupervisorOptions,
  RegisterOptions,
  SupervisionNode,
  UnloadOptions,
} from "../api.js";
import type { Backend } from "../backends/backend.js";
import type {
  ChatMessage,
  ChatOptions,
  ChatResult,
  EmbedOptions,
  GenerateOptions,
  RankOptions,
  RequestOptions,
  WaitOptions,
} from "../inference.js";
import type { MetricsSnapshot } from "../metrics/snapshot.js";
import { shownSource } from "../model.js";
import type { DeviceInfo, LoadPlan, MemoryBudget, MemoryReport, ModelId, ModelInfo, ModelSource } from "../model.js";
import { infoOf } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import type { Calls } from "./calls.js";
import { guard } from "./emitter.js";
import type { ModelEvents } from "./emitter.js";
import { InferenceCalls } from "./inference-calls.js";
import { resolveBudget } from "./memory/budget.js";
import { memoryReport } from "./memory/report.js";
import { planOf } from "./memory/plan.js";
import { tenantsOf } from "./memory/tenants.js";
import type { MetricsRecorder } from "./metrics/recorder.js";
import { ModelLease } from "./model-lease.js";
import { ModelTarget } from "./model-target.js";
import {
  checkCloseOptions,
  checkLoadOptions,
  checkMemoryBudget,
  checkModelId,
  checkModelOptions,
  checkNoModelOptions,
  checkRegisterOptions,
  checkSource,
  checkUnloadOptions,
  loadSettings,
} from "./options.js";
import { peekAtLoad } from "./plan-load.js";
import { checkRequestOptions, checkWaitOptions } from "./request-options.js";
import type { Held } from "./protocol.js";
import { isEager } from "./readiness.js";
import { RequestEvents } from "./request-events.js";
import { within } from "./within.js";

export interface ModelManagerInput {
  readonly name: string;
  readonly table: ModelTable;
  readonly backend: Backend;
  readonly overBudget: NonNullable<ModelSupervisorOptions["overBudget"]>;
  readonly maxWaitMs: number;
  readonly defaultTtlMs: number;
  readonly maxThreads: number;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly events: ModelEvents;
  readonly metrics: MetricsRecorder;
  readonly calls: Calls;
  readonly closed: Promise<CloseReason>;
  /** Throws once the supervisor is closing or has ended. */
  readonly checkOpen: () => void;
  readonly close: (timeoutMs: number) => Promise<void>;
  readonly describe: () => SupervisionNode;
}

export class ModelManagerClient implements ModelManager {
  readonly #input: ModelManagerInput;
  readonly #inference: InferenceCalls;

  constructor(input: ModelManagerInput) {
    this.#input = input;
    const { clock, events, metrics } = input;
    this.#inference = new InferenceCalls({ clock, events: new RequestEvents(events), metrics });
  }

  get name(): string {
    return this.#input.name;
  }

  get closed(): Promise<CloseReason> {
    return this.#input.closed;
  }

  // lifecycle: serialized through the mailbox

  async load(id: ModelId, source?: ModelSource, options: LoadOptions = {}): Promise<ModelInfo> {
    const { calls, logger, defaultTtlMs, checkOpen } = this.#input;
    checkOpen();
    checkModelId(id);
    const { signal, onProgress, ...model } = checkLoadOptions(options);
    const made =
      source === undefined ? undefined : { source: checkSource(source), settings: loadSettings(model, defaultTtlMs) };
    if (source === undefined) checkNoModelOptions(model);
    return calls.callWithSignal<ModelInfo>(id, signal, (reply, ticket) => ({
      type: "model.load",
      id,
      source: made,
      trigger: "call",
      makeDefault: model.default ?? false,
      onProgress:
        onProgress &&
        ((phase, fraction) => guard(() => onProgress({ modelId: id, phase, fraction }), "onProgress", logger)),
      ticket,
      reply,
    }));
  }

  async register(id: ModelId, source: ModelSource, options: RegisterOptions = {}): Promise<ModelInfo> {
    const { calls, defaultTtlMs, checkOpen } = this.#input;
    checkOpen();
    checkModelId(id);
    const { signal, ...model } = checkRegisterOptions(options);
    const settings = loadSettings({ ...model, loadPolicy: "lazy" }, defaultTtlMs);
    const made = { source: checkSource(source), settings, makeDefault: model.default ?? false };
    return calls.callWithSignal<ModelInfo>(id, signal, (reply, ticket) => ({
      ...made,
      type: "model.register",
      id,
      ticket,
      reply,
    }));
  }

  async unload(id: ModelId, options: UnloadOptions = {}): Promise<void> {
    return this.#unload(id, options, false);
  }

  async remove(id: ModelId, options: UnloadOptions = {}): Promise<void> {
    return this.#unload(id, options, true);
  }

  async #unload(id: ModelId, options: UnloadOptions, forget: boolean): Promise<void> {
    const { calls, checkOpen } = this.#input;
    checkOpen();
    checkModelId(id);
    const { timeoutMs, force } = checkUnloadOptions(options);
    return calls.call<void>(id, (reply) => ({
      type: "model.unload",
      id,
      timeoutMs,
      force,
      forget,
      reason: "caller",
      reply,
    }));
  }

  async setDefault(id: ModelId): Promise<void> {
    this.#input.checkOpen();
    checkModelId(id);
    return this.#input.calls.call<void>(id, (reply) => ({ type: "default.set", id, reply }));
  }

  async setMemoryBudget(budget: MemoryBudget): Promise<MemoryReport> {
    const { calls, name, checkOpen } = this.#input;
    checkOpen();
    const checked = checkMemoryBudget(budget);
    return calls.call<MemoryReport>(name, (reply) => ({ type: "budget.set", budget: checked, reply }));
  }

  async ready(options: WaitOptions = {}): Promise<void> {
    const { calls, clock, table, checkOpen } = this.#input;
    checkOpen();
    const subject = [...table.entries()]
      .filter(isEager)
      .map((row) => row.id)
      .join(", ");
    return within(checkWaitOptions(options), subject, clock, (signal) =>
      calls.callWithSignal<void>(subject, signal, (reply, ticket) => ({ type: "ready.wait", ticket, reply })),
    );
  }

  async close(options: { readonly timeoutMs?: number | undefined } = {}): Promise<void> {
    const { timeoutMs } = checkCloseOptions(options);
    await this.#input.close(timeoutMs);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  // reads: straight from the table

  list(): ModelInfo[] {
    return [...this.#input.table.entries()].map((entry) => infoOf(entry, this.#reservation(entry)));
  }

  info(id: ModelId): ModelInfo | undefined {
    const entry = this.#input.table.get(id);
    return entry && infoOf(entry, this.#reservation(entry));
  }

  #reservation({ id, incarnation }: { readonly id: ModelId; readonly incarnation: number }) {
    return this.#input.table.reservation(id, incarnation);
  }

  isLoaded(id: ModelId): boolean {
    return this.#input.table.get(id)?.live?.block.isReady ?? false;
  }

  defaultId(): ModelId | undefined {
    return this.#input.table.defaultId();
  }

  memory(): MemoryReport {
    const { table, clock, maxWaitMs } = this.#input;
    return memoryReport(table, clock.now(), maxWaitMs);
  }

  tree(): SupervisionNode {
    return this.#input.describe();
  }

  metrics(): MetricsSnapshot {
    return this.#input.metrics.snapshot(this.memory());
  }

  // inference: a table read and a lease, then straight to the backing

  #target(id: ModelId): ModelTarget {
    return new ModelTarget(id, this.#input);
  }

  generate(id: ModelId, prompt: string, options?: GenerateOptions) {
    return this.#inference.generate(this.#target(id), prompt, options);
  }

  stream(id: ModelId, prompt: string, options?: GenerateOptions): GenerationStream {
    return this.#inference.stream(this.#target(id), prompt, options);
  }

  chat(id: ModelId, messages: readonly ChatMessage[], options?: ChatOptions) {
    return this.#inference.chat(this.#target(id), messages, options);
  }

  streamChat(id: ModelId, messages: readonly ChatMessage[], options?: ChatOptions): GenerationStream<ChatResult> {
    return this.#inference.streamChat(this.#target(id), messages, options);
  }

  embed(id: ModelId, text: string, options?: EmbedOptions) {
    return this.#inference.embed(this.#target(id), text, options);
  }

  embedMany(id: ModelId, texts: readonly string[], options?: EmbedOptions) {
    return this.#inference.embedMany(this.#target(id), texts, options);
  }

  rank(id: ModelId, query: string, documents: readonly string[], options?: RankOptions) {
    return this.#inference.rank(this.#target(id), query, documents, options);
  }

  tokenize(id: ModelId, text: string) {
    return this.#inference.tokenize(this.#target(id), text);
  }

  detokenize(id: ModelId, tokens: readonly number[]) {
    return this.#inference.detokenize(this.#target(id), tokens);
  }

  async acquire(id: ModelId, options: RequestOptions = {}): Promise<Lease> {
    const { clock } = this.#input;
    const { waitForLoad, ...wait } = checkRequestOptions(options);
    wait.signal?.throwIfAborted();
    const target = this.#target(id);
    const held = target.hold(waitForLoad) ?? (await this.#waitFor(target, wait));
    return new ModelLease(held, clock, this.#inference);
  }

  async #waitFor(target: ModelTarget, wait: WaitOptions): Promise<Held> {
    const { clock, metrics } = this.#input;
    const since = clock.now();
    const held = await within(wait, target.modelId, clock, (signal) => target.wait(signal));
    metrics.coldStart(target.modelId, clock.now() - since);
    return held;
  }

  async plan(source: ModelSource, options: ModelOptions = {}): Promise<LoadPlan> {
    const { backend, table, clock, overBudget, maxWaitMs, defaultTtlMs, maxThreads, checkOpen } = this.#input;
    checkOpen();
    const settings = loadSettings(checkModelOptions(options), defaultTtlMs);
    const { placement, shared, profile, devices, asOf } = await peekAtLoad({
      backend,
      table,
      id: shownSource(source),
      source: checkSource(source),
      settings,
      maxThreads,
    });
    const pools = resolveBudget(table.budget(), devices);
    const tenants = tenantsOf(table, clock.now(), maxWaitMs, asOf);
    return planOf(profile, { placement, shared, pools, tenants, ahead: [] }, overBudget === "evict-idle");
  }

  async devices(): Promise<readonly DeviceInfo[]> {
    this.#input.checkOpen();
    return this.#input.backend.devices();
  }

  on<Name extends keyof ModelManagerEvents>(event: Name, listener: ModelManagerEvents[Name]): this {
    this.#input.events.on(event, listener);
    return this;
  }

  once<Name extends keyof ModelManagerEvents>(event: Name, listener: ModelManagerEvents[Name]): this {
    this.#input.events.once(event, listener);
    return this;
  }

  off<Name extends keyof ModelManagerEvents>(event: Name, listener: ModelManagerEvents[Name]): this {
    this.#input.events.off(event, listener);
    return this;
  }
}
