/** What Prometheus is told, as a table: the names, and where in a snapshot the values are. */
import type { DeviceMetrics, MetricsSnapshot, ModelMetrics, SecondsHistogram } from "../index.js";

/** One value of a series, by its labels. */
export interface Sample<Value> {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: Value;
}

export interface Series<Value> {
  readonly name: string;
  readonly help: string;
  readonly labelNames: readonly string[];
  readonly read: (snapshot: MetricsSnapshot) => readonly Sample<Value>[];
}

export const COUNTERS: readonly Series<number>[] = [
  ofModelsBy("trigger", "loads_total", "Loads begun.", ({ loads }) => loads),
  ofModels("failed_loads_total", "Loads that ended with an error.", ({ failedLoads }) => failedLoads),
  ofModels("cancelled_loads_total", "Loads that were cancelled.", ({ cancelledLoads }) => cancelledLoads),
  ofModels("joined_loads_total", "Calls that joined a load under way.", ({ joinedLoads }) => joinedLoads),
  ofModelsBy("reason", "unloads_total", "Ends of models that had been ready.", ({ unloads }) => unloads),
  ofModelsBy("outcome", "requests_total", "Requests that are over.", ({ requests }) => requests),
  ofDevices("memory_refusals_total", "Loads that the device was too small for.", ({ refusals }) => refusals),
];

export const GAUGES: readonly Series<number>[] = [
  ofModels("model_ready", "1 while the model takes requests.", ({ isReady }) => Number(isReady)),
  ofModels("model_reserved_bytes", "What the model needs of memory.", ({ reservedBytes }) => reservedBytes),
  ofModels("in_flight", "Requests and leases that hold the model.", ({ inFlight }) => inFlight),
  ofModels("peak_in_flight", "The most that held the model at the same time.", ({ peakInFlight }) => peakInFlight),
  ofDevices("memory_limit_bytes", "What the budget allows.", ({ limitBytes }) => limitBytes ?? Infinity),
  ofDevices("memory_reserved_bytes", "What models have claimed.", ({ reservedBytes }) => reservedBytes),
  ofDevices("memory_measured_bytes", "The claims that the engine has reported.", ({ measuredBytes }) => measuredBytes),
  ofDevices("memory_evictable_bytes", "What idle models could give up.", ({ evictableBytes }) => evictableBytes),
  ofDevices("memory_available_bytes", "What a load could claim.", ({ availableBytes }) => availableBytes ?? Infinity),
];

export const HISTOGRAMS: readonly Series<SecondsHistogram>[] = [
  ofModels("load_seconds", "How long loads took.", ({ loadSeconds }) => loadSeconds),
  ofModels("cold_start_seconds", "How long requests waited for a load.", ({ coldStartSeconds }) => coldStartSeconds),
  ofModels("queue_seconds", "How long requests waited for a slot.", ({ queueSeconds }) => queueSeconds),
  ofModels("eviction_idle_seconds", "How long evicted models had been idle.", (model) => model.evictionIdleSeconds),
];

function ofModels<Value>(name: string, help: string, valueOf: (model: ModelMetrics) => Value): Series<Value> {
  return {
    ...named(name, help, ["model"]),
    read: ({ models }) => models.map((model) => ({ labels: { model: model.modelId }, value: valueOf(model) })),
  };
}

function ofModelsBy(
  label: string,
  name: string,
  help: string,
  countsOf: (model: ModelMetrics) => Readonly<Record<string, number>>,
): Series<number> {
  return {
    ...named(name, help, ["model", label]),
    read: ({ models }) =>
      models.flatMap((model) =>
        Object.entries(countsOf(model)).map(([key, value]) => ({
          labels: { model: model.modelId, [label]: key },
          value,
        })),
      ),
  };
}

function ofDevices(name: string, help: string, valueOf: (device: DeviceMetrics) => number): Series<number> {
  return {
    ...named(name, help, ["device"]),
    read: ({ devices }) => devices.map((device) => ({ labels: { device: device.device }, value: valueOf(device) })),
  };
}

function named(name: string, help: string, labelNames: readonly string[]) {
  return { name: `model_supervisor_${name}`, help, labelNames: ["supervisor", ...labelNames] };
}
