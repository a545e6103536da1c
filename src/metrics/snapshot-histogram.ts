import { Histogram } from "prom-client";
import type { SecondsHistogram } from "../index.js";
import type { Series } from "./series.js";
import type { Sources } from "./sources.js";

/** A histogram that was counted elsewhere. prom-client can only count by itself, so what it prints is made here. */
export class SnapshotHistogram extends Histogram {
  readonly sources: Sources;
  readonly #series: Series<SecondsHistogram>;

  constructor(series: Series<SecondsHistogram>, sources: Sources) {
    const { name, help, labelNames } = series;
    super({ name, help, labelNames, registers: [] });
    this.#series = series;
    this.sources = sources;
  }

  /** What prom-client 15 asks its histograms for, in both of its formats; its types do not have it. */
  async getForPromString() {
    const { name, help } = this.#series;
    const values = this.sources.samples(this.#series).flatMap(({ labels: sharedLabels, value }) => [
      ...[...value.buckets, { upTo: "+Inf", count: value.count }].map(({ upTo, count }) => ({
        metricName: `${name}_bucket`,
        labels: { le: upTo },
        sharedLabels,
        value: count,
      })),
      { metricName: `${name}_sum`, labels: {}, sharedLabels, value: value.sum },
      { metricName: `${name}_count`, labels: {}, sharedLabels, value: value.count },
    ]);
    return { name, help, type: "histogram", values, aggregator: "sum" };
  }
}
