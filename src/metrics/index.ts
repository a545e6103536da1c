/** `models.metrics()` for Prometheus, by way of prom-client, which the application brings (an optional peer). */
import { Counter, Gauge, Registry } from "prom-client";
import type { RegistryContentType } from "prom-client";
import { InvalidOptionError } from "../index.js";
import type { ModelManager } from "../index.js";
import { COUNTERS, GAUGES, HISTOGRAMS, type Series } from "./series.js";
import { SnapshotHistogram } from "./snapshot-histogram.js";
import { Sources } from "./sources.js";

/** Options of {@link collectMetrics}. */
export interface CollectMetricsOptions {
  /** Where the series are registered. Default: a registry of its own. */
  readonly registry?: Registry<RegistryContentType> | undefined;
}

/** The series of one supervisor on a registry. */
export interface CollectedMetrics {
  /** `await registry.metrics()` is what a scrape is answered with, as `registry.contentType`. */
  readonly registry: Registry<RegistryContentType>;
  /** Takes the series of this supervisor away; the end of the supervisor does so too. A second call does nothing. */
  unregister(): void;
}

/**
 * Registers the numbers of a manager with prom-client, as `model_supervisor_…` in seconds and bytes, labelled with the
 * `supervisor`'s name. They are read when the registry is; nothing is counted twice and no model is woken. Several managers
 * may share a registry.
 * @throws invalid_option if the registry has the series of a supervisor of this name, or a metric of one of the names
 * @example
 * const { registry } = collectMetrics(models);
 * createServer(async (_, response) => {
 *   response.setHeader("content-type", registry.contentType).end(await registry.metrics());
 * }).listen(9100, "127.0.0.1");
 */
export function collectMetrics(manager: ModelManager, options: CollectMetricsOptions = {}): CollectedMetrics {
  const { registry = new Registry<RegistryContentType>(), ...others } = options;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) throw new InvalidOptionError(unknown, "the option registry only", unknown);
  const sources = sourcesOf(registry) ?? register(registry);
  const { name } = manager;
  if (sources.has(name)) {
    throw new InvalidOptionError("registry", `one that does not have the metrics of "${name}" yet`, registry);
  }
  sources.add(manager);
  const unregister = () => {
    sources.delete(manager);
    // the application may have cleared its registry, and others may have registered there since
    if (!sources.isEmpty || sourcesOf(registry) !== sources) return;
    for (const series of [...COUNTERS, ...GAUGES, ...HISTOGRAMS]) registry.removeSingleMetric(series.name);
  };
  void manager.closed.then(unregister);
  return { registry, unregister };
}

/** The sources of the series that are registered already. */
function sourcesOf(registry: Registry<RegistryContentType>): Sources | undefined {
  for (const metric of registry.getMetricsAsArray()) {
    if (metric instanceof SnapshotHistogram) return metric.sources;
  }
  return undefined;
}

function register(registry: Registry<RegistryContentType>): Sources {
  const taken = [...COUNTERS, ...GAUGES, ...HISTOGRAMS].find(({ name }) => registry.getSingleMetric(name));
  if (taken) throw new InvalidOptionError("registry", `one without a metric named ${taken.name}`, registry);
  const sources = new Sources();
  for (const series of COUNTERS) {
    registry.registerMetric(
      new Counter({
        ...settingsOf(series),
        collect() {
          this.reset();
          for (const { labels, value } of sources.samples(series)) this.inc(labels, value);
        },
      }),
    );
  }
  for (const series of GAUGES) {
    registry.registerMetric(
      new Gauge({
        ...settingsOf(series),
        collect() {
          this.reset();
          for (const { labels, value } of sources.samples(series)) this.set(labels, value);
        },
      }),
    );
  }
  for (const series of HISTOGRAMS) registry.registerMetric(new SnapshotHistogram(series, sources));
  return sources;
}

/** Registered by hand, on one registry. */
function settingsOf({ name, help, labelNames }: Series<number>) {
  return { name, help, labelNames, registers: [] };
}
