import {
  DEFAULT_CLOCK,
  DEFAULT_LOGGER,
  DEFAULT_MAX_QUEUE_TOTAL,
  DEFAULT_MAX_WAIT_MS,
  DEFAULT_SWEEP_INTERVAL_MS,
  safeLogger,
} from "./defaults.js";
import type { Clock, CloseReason, ModelDeclaration, ModelManager, ModelSupervisorOptions } from "../api.js";
import { nodeLlamaCpp } from "../backends/node-llama-cpp/index.js";
import { AlreadyStartedError, ClosedError, NotStartedError, isModelSupervisorError } from "../errors.js";
import type { ModelSupervisorError } from "../errors.js";
import { ModelEvents } from "../manager/emitter.js";
import { unreleasedMemory } from "../manager/memory/report.js";
import { MetricsRecorder } from "../manager/metrics/recorder.js";
import { ModelManagerClient } from "../manager/model-manager.js";
import { MAX_DELAY_MS } from "../manager/option-parts.js";
import { checkSupervisorOptions, loadSettings } from "../manager/options.js";
import type { Declared } from "../manager/protocol.js";
import { TotalQueue } from "../manager/queue-limit.js";
import { defaultMaxThreads } from "../process-limits.js";
import { createModelTable } from "../table/model-table.js";
import { disposeLeftovers } from "./leftovers.js";
import { Tree } from "./tree.js";
import { DISPOSE_DEADLINE_MS } from "./unload-task.js";

/** The managers that run in this process, by name; `"starting"` while a start is under way. */
const running = new Map<string, ModelManager | "starting">();

/** Where everything begins: `start` gives a {@link ModelManager}, `get` one that runs already. */
export const ModelSupervisor = {
  /**
   * Starts a supervision tree and resolves when its manager answers; declared models are visible as `loading` then.
   *
   * @throws already_started for a second start under one name; invalid_option; what the backend's `devices()` rejects with
   * @example
   * await using models = await ModelSupervisor.start({ models: [{ id: "chat", source: "./chat.gguf" }] });
   * await models.ready();
   * const { text } = await models.generate("chat", "Once upon a time");
   */
  async start(options: ModelSupervisorOptions = {}): Promise<ModelManager> {
    const checked = checkSupervisorOptions(options);
    const { name = "default" } = checked;
    if (running.has(name)) throw new AlreadyStartedError(name);
    running.set(name, "starting");
    try {
      const manager = await startTree(name, checked);
      running.set(name, manager);
      void manager.closed.then(() => running.delete(name));
      return manager;
    } catch (error) {
      running.delete(name);
      throw error;
    }
  },

  /** The manager of that name. @throws not_started */
  get(name = "default"): ModelManager {
    const manager = running.get(name);
    if (manager === undefined || manager === "starting") throw new NotStartedError(name);
    return manager;
  },
};

async function startTree(name: string, options: ModelSupervisorOptions): Promise<ModelManager> {
  const {
    backend = nodeLlamaCpp({ modelsDir: options.modelsDir }),
    memoryBudget: budget = "auto",
    models: declarations = [],
    maxQueueTotal = DEFAULT_MAX_QUEUE_TOTAL,
    overBudget = "refuse",
    maxWaitMs = DEFAULT_MAX_WAIT_MS,
    sweepIntervalMs = DEFAULT_SWEEP_INTERVAL_MS,
    defaultTtlMs = Infinity,
    clock = DEFAULT_CLOCK,
  } = options;
  const maxThreads =
    options.maxThreads === undefined || options.maxThreads === "auto" ? defaultMaxThreads() : options.maxThreads;
  const logger = safeLogger(options.logger ?? DEFAULT_LOGGER);
  const { table, writer } = createModelTable(await backend.devices(), budget);
  const events = new ModelEvents(logger, name);
  const metrics = new MetricsRecorder(table);
  const tree = new Tree({
    name,
    table,
    writer,
    backend,
    overBudget,
    maxWaitMs,
    sweepIntervalMs,
    maxThreads,
    queueLimit: new TotalQueue(maxQueueTotal),
    steps: {
      get isHeard() {
        return events.isHeard("engine:step");
      },
      tell: (payload) => events.emit({ name: "engine:step", payload }),
    },
    declarations: new Map(declarations.map((model) => [model.id, declared(model, defaultTtlMs)])),
    clock,
    logger,
    notify: (notice) => {
      metrics.observe(notice);
      events.emit(notice);
    },
    onJoined: (id) => metrics.joined(id),
  });

  let refusal: ModelSupervisorError | undefined;
  const closed = tree.ended.then(async (error): Promise<CloseReason> => {
    refusal = error ?? new ClosedError(name);
    if (error) await disposeLeftovers(table, writer, clock, backend, error);
    for (const { id } of [...table.entries()]) writer.delete(id);
    const unreleased = unreleasedMemory(table);
    return error ? { reason: "exhausted", error, unreleased } : { reason: "closed", unreleased };
  });

  return new ModelManagerClient({
    name,
    table,
    backend,
    overBudget,
    maxWaitMs,
    defaultTtlMs,
    maxThreads,
    clock,
    logger,
    events,
    metrics,
    closed,
    calls: tree.calls,
    describe: () => tree.describe(),
    checkOpen: () => {
      if (refusal) throw refusal;
    },
    close: async (timeoutMs) => {
      refusal ??= new ClosedError(name);
      tree.close();
      await closeAll(tree, name, timeoutMs, clock);
      tree.stop();
      await closed;
    },
  });
}

function declared({ id: _id, source, ...options }: ModelDeclaration, defaultTtlMs: number): Declared {
  return { source, settings: loadSettings(options, defaultTtlMs), isDefault: options.default ?? false };
}

/**
 * Unloads everything. A manager that is restarted meanwhile is told again; the restart limit ends this in any case. So does
 * a last deadline, behind those of the unloads: whatever goes wrong, a close ends.
 */
async function closeAll(tree: Tree, name: string, timeoutMs: number, clock: Clock): Promise<void> {
  let timer: unknown;
  const deadline = new Promise<void>((resolve) => {
    const lastMs = timeoutMs + 2 * DISPOSE_DEADLINE_MS;
    // beyond it a timer would end at once
    if (lastMs <= MAX_DELAY_MS) timer = clock.setTimeout(resolve, lastMs);
  });
  await Promise.race([unloadAll(tree, name, timeoutMs), deadline]);
  if (timer !== undefined) clock.clearTimeout(timer);
}

async function unloadAll(tree: Tree, name: string, timeoutMs: number): Promise<void> {
  for (;;) {
    try {
      return await tree.calls.call<void>(name, (reply) => ({ type: "manager.close", timeoutMs, reply }));
    } catch (error) {
      if (!isModelSupervisorError(error, "request_aborted")) return; // the tree has ended
    }
  }
}
