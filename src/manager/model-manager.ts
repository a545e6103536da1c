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
  SupervisionNode,
  UnloadOptions,
} from "../api.js";
import type { Backend } from "../backends/backend.js";
import { RequestTimeoutError } from "../errors.js";
import type {
  ChatMessage,
  ChatOptions,
  ChatResult,
  EmbedOptions,
  GenerateOptions,
  RankOptions,
  RequestOptions,
} from "../inference.js";
import type { MetricsSnapshot } from "../metrics/snapshot.js";
import { shownSource } from "../model.js";
import type { DeviceInfo, LoadPlan, MemoryBudget, MemoryReport, ModelId, ModelInfo, ModelSource } from "../model.js";
import { infoOf } from "../table/entry.js";
import type { ModelTable } from "../table/model-table.js";
import type { Calls } from "./calls.js";
import { hold } from "./dispatch.js";
import { guard } from "./emitter.js";
import type { ModelEvents } from "./emitter.js";
import { InferenceCalls } from "./inference-calls.js";
import type { Take } from "./inference-calls.js";
import { claimsAsOf } from "./memory/budget.js";
import { memoryReport } from "./memory/report.js";
import { planOf } from "./memory/plan.js";
import type { MetricsRecorder } from "./metrics/recorder.js";
import { onAbort } from "./on-abort.js";
import { ModelLease } from "./model-lease.js";
import {
  checkCloseOptions,
  checkLoadOptions,
  checkModelId,
  checkModelOptions,
  checkNoModelOptions,
  checkRequestOptions,
  checkSource,
  checkUnloadOptions,
  loadSettings,
} from "./options.js";
import { planLoad } from "./plan-load.js";
import { RequestEvents } from "./request-events.js";

export interface ModelManagerInput {
  readonly name: string;
  readonly table: ModelTable;
  readonly backend: Backend;
  readonly budget: MemoryBudget;
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
    this.#inference = new InferenceCalls({ clock: input.clock, events: new RequestEvents(input.events) });
  }

  get name(): string {
    return this.#input.name;
  }

  get closed(): Promise<CloseReason> {
    return this.#input.closed;
  }

  // lifecycle: serialized through the mailbox

  async load(id: ModelId, source?: ModelSource, options: LoadOptions = {}): Promise<ModelInfo> {
    const { calls, logger, checkOpen } = this.#input;
    checkOpen();
    checkModelId(id);
    const { signal, onProgress, ...model } = checkLoadOptions(options);
    const settings = source === undefined ? undefined : { source: checkSource(source), settings: loadSettings(model) };
    if (source === undefined) checkNoModelOptions(model);
    return calls.callWithSignal<ModelInfo>(
      id,
      signal,
      (reply, ticket) => ({
        type: "model.load",
        id,
        source: settings,
        makeDefault: model.default ?? false,
        onProgress:
          onProgress &&
          ((phase, fraction) => guard(() => onProgress({ modelId: id, phase, fraction }), "onProgress", logger)),
        ticket,
        reply,
      }),
      (ticket) => ({ type: "load.withdraw", ticket }),
    );
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

  async ready(options: RequestOptions = {}): Promise<void> {
    const { calls, clock, table, checkOpen } = this.#input;
    checkOpen();
    const declared = [...table.entries()].filter((row) => row.declared).map((row) => row.id);
    const subject = declared.join(", ");
    const { signal, timeoutMs = Infinity } = checkRequestOptions(options);
    const leave = new AbortController();
    const stopListening = onAbort(signal, (reason) => leave.abort(reason));
    const timer =
      timeoutMs < Infinity
        ? clock.setTimeout(() => leave.abort(new RequestTimeoutError(subject, "load", timeoutMs)), timeoutMs)
        : undefined;
    try {
      await calls.callWithSignal<void>(
        subject,
        leave.signal,
        (reply, ticket) => ({ type: "ready.wait", ticket, reply }),
        (ticket) => ({ type: "ready.withdraw", ticket }),
      );
    } finally {
      stopListening();
      if (timer !== undefined) clock.clearTimeout(timer);
    }
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
    return memoryReport(this.#input.table, this.#input.budget);
  }

  tree(): SupervisionNode {
    return this.#input.describe();
  }

  metrics(): MetricsSnapshot {
    return this.#input.metrics.snapshot(this.memory());
  }

  // inference: a table read and a lease, then straight to the backing

  #take(id: ModelId): Take {
    return () => {
      this.#input.checkOpen();
      return hold(this.#input.table, id, this.#input.clock);
    };
  }

  generate(id: ModelId, prompt: string, options?: GenerateOptions) {
    return this.#inference.generate(this.#take(id), prompt, options);
  }

  stream(id: ModelId, prompt: string, options?: GenerateOptions): GenerationStream {
    return this.#inference.stream(this.#take(id), prompt, options);
  }

  chat(id: ModelId, messages: readonly ChatMessage[], options?: ChatOptions) {
    return this.#inference.chat(this.#take(id), messages, options);
  }

  streamChat(id: ModelId, messages: readonly ChatMessage[], options?: ChatOptions): GenerationStream<ChatResult> {
    return this.#inference.streamChat(this.#take(id), messages, options);
  }

  embed(id: ModelId, text: string, options?: EmbedOptions) {
    return this.#inference.embed(this.#take(id), text, options);
  }

  embedMany(id: ModelId, texts: readonly string[], options?: EmbedOptions) {
    return this.#inference.embedMany(this.#take(id), texts, options);
  }

  rank(id: ModelId, query: string, documents: readonly string[], options?: RankOptions) {
    return this.#inference.rank(this.#take(id), query, documents, options);
  }

  tokenize(id: ModelId, text: string) {
    return this.#inference.tokenize(this.#take(id), text);
  }

  detokenize(id: ModelId, tokens: readonly number[]) {
    return this.#inference.detokenize(this.#take(id), tokens);
  }

  async acquire(id: ModelId): Promise<Lease> {
    return new ModelLease(this.#take(id)(), this.#input.clock, this.#inference);
  }

  async plan(source: ModelSource, options: ModelOptions = {}): Promise<LoadPlan> {
    const { backend, table, budget, maxThreads, checkOpen } = this.#input;
    checkOpen();
    const settings = loadSettings(checkModelOptions(options));
    const controller = new AbortController();
    const load = await planLoad({
      backend,
      budget,
      table,
      id: shownSource(source),
      source: checkSource(source),
      settings,
      maxThreads,
      signal: controller.signal,
      mayDownload: false,
    }).finally(() => controller.abort());
    return planOf(load, budget, claimsAsOf(table.reservations(), load.asOf));
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
