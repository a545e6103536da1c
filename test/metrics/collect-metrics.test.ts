import { Counter, Registry } from "prom-client";
import type { RegistryContentType } from "prom-client";
import { describe, expect, it } from "vitest";
import { collectMetrics } from "../../src/metrics/index.js";
import type { MetricsSnapshot, ModelManager } from "../../src/index.js";
import { rejection, settle, startTestSupervisor } from "../support/test-supervisor.js";

const GB = 1e9;

/** The series of a text as Prometheus reads it: `name{labels}` to value, and the types. */
function parse(text: string): { readonly values: Record<string, number>; readonly types: Record<string, string> } {
  const values: Record<string, number> = {};
  const types: Record<string, string> = {};
  for (const line of text.split("\n").filter((line) => line !== "")) {
    const [, typed, type] = /^# TYPE (\S+) (\S+)$/.exec(line) ?? [];
    if (typed !== undefined && type !== undefined) types[typed] = type;
    if (line.startsWith("#")) continue;
    const [, series, value] = /^([a-z_]+\{.*\}) (\S+)$/.exec(line) ?? [];
    if (series === undefined || series in values) throw new Error(`not a series, or one twice: ${line}`);
    values[series] = value === "+Inf" ? Infinity : Number(value);
  }
  return { values, types };
}

async function scrape(registry: Registry<RegistryContentType>) {
  return parse(await registry.metrics());
}

describe("collectMetrics", () => {
  it("shows what metrics() counts, in bytes, by supervisor, model, reason and device", async () => {
    const { models } = await startTestSupervisor({
      memoryBudget: 10 * GB,
      fake: { models: { "a.gguf": { ramBytes: 4 * GB }, "big.gguf": { ramBytes: 7 * GB } } },
    });
    const { registry } = collectMetrics(models);
    await models.load("a", "a.gguf");
    await models.unload("a");
    await models.load("a", "a.gguf");
    await rejection(models.load("big", "big.gguf"));
    using lease = await models.acquire("a");

    const { values, types } = await scrape(registry);

    expect(lease.modelId).toBe("a");
    const supervisor = models.name;
    expect(values).toMatchObject({
      [`model_supervisor_unloads_total{supervisor="${supervisor}",model="a",reason="caller"}`]: 1,
      [`model_supervisor_unloads_total{supervisor="${supervisor}",model="a",reason="crash"}`]: 0,
      [`model_supervisor_failed_loads_total{supervisor="${supervisor}",model="a"}`]: 0,
      [`model_supervisor_failed_loads_total{supervisor="${supervisor}",model="big"}`]: 1,
      [`model_supervisor_model_ready{supervisor="${supervisor}",model="a"}`]: 1,
      [`model_supervisor_model_ready{supervisor="${supervisor}",model="big"}`]: 0,
      [`model_supervisor_model_reserved_bytes{supervisor="${supervisor}",model="a"}`]: 4 * GB,
      [`model_supervisor_in_flight{supervisor="${supervisor}",model="a"}`]: 1,
      [`model_supervisor_peak_in_flight{supervisor="${supervisor}",model="a"}`]: 1,
      [`model_supervisor_memory_limit_bytes{supervisor="${supervisor}",device="total"}`]: 10 * GB,
      [`model_supervisor_memory_reserved_bytes{supervisor="${supervisor}",device="total"}`]: 4 * GB,
      [`model_supervisor_memory_measured_bytes{supervisor="${supervisor}",device="total"}`]: 4 * GB,
      [`model_supervisor_memory_available_bytes{supervisor="${supervisor}",device="total"}`]: 6 * GB,
      [`model_supervisor_memory_refusals_total{supervisor="${supervisor}",device="total"}`]: 1,
    });
    expect(types).toMatchObject({
      model_supervisor_unloads_total: "counter",
      model_supervisor_in_flight: "gauge",
      model_supervisor_load_seconds: "histogram",
    });
  });

  it("says +Inf for a limit that there is not", async () => {
    const { models } = await startTestSupervisor();

    const { values } = await scrape(collectMetrics(models).registry);

    expect(values[`model_supervisor_memory_limit_bytes{supervisor="${models.name}",device="ram"}`]).toBe(Infinity);
  });

  it("shows every number of a snapshot, and histograms as cumulative buckets up to +Inf with sum and count", async () => {
    const { values } = await scrape(collectMetrics(pretended("s", snapshotOf("m"))).registry);

    const model = 'supervisor="s",model="m"';
    const histograms = Object.entries({ load: 1, cold_start: 2, queue: 3, eviction_idle: 4 }).flatMap(
      ([name, first]) => [
        [`model_supervisor_${name}_seconds_bucket{le="0.5",${model}}`, first],
        [`model_supervisor_${name}_seconds_bucket{le="2",${model}}`, first + 10],
        [`model_supervisor_${name}_seconds_bucket{le="+Inf",${model}}`, first + 100],
        [`model_supervisor_${name}_seconds_sum{${model}}`, first + 0.25],
        [`model_supervisor_${name}_seconds_count{${model}}`, first + 100],
      ],
    );
    expect(values).toEqual({
      [`model_supervisor_loads_total{${model},trigger="eager"}`]: 11,
      [`model_supervisor_loads_total{${model},trigger="request"}`]: 12,
      [`model_supervisor_loads_total{${model},trigger="call"}`]: 13,
      [`model_supervisor_failed_loads_total{${model}}`]: 14,
      [`model_supervisor_cancelled_loads_total{${model}}`]: 15,
      [`model_supervisor_joined_loads_total{${model}}`]: 16,
      [`model_supervisor_unloads_total{${model},reason="caller"}`]: 17,
      [`model_supervisor_unloads_total{${model},reason="ttl"}`]: 18,
      [`model_supervisor_unloads_total{${model},reason="eviction"}`]: 19,
      [`model_supervisor_unloads_total{${model},reason="close"}`]: 20,
      [`model_supervisor_unloads_total{${model},reason="crash"}`]: 21,
      [`model_supervisor_requests_total{${model},outcome="done"}`]: 22,
      [`model_supervisor_requests_total{${model},outcome="aborted"}`]: 23,
      [`model_supervisor_requests_total{${model},outcome="failed"}`]: 24,
      [`model_supervisor_model_ready{${model}}`]: 1,
      [`model_supervisor_model_reserved_bytes{${model}}`]: 27,
      [`model_supervisor_in_flight{${model}}`]: 25,
      [`model_supervisor_peak_in_flight{${model}}`]: 26,
      'model_supervisor_memory_limit_bytes{supervisor="s",device="gpu:0"}': 31,
      'model_supervisor_memory_reserved_bytes{supervisor="s",device="gpu:0"}': 32,
      'model_supervisor_memory_measured_bytes{supervisor="s",device="gpu:0"}': 33,
      'model_supervisor_memory_available_bytes{supervisor="s",device="gpu:0"}': 34,
      'model_supervisor_memory_refusals_total{supervisor="s",device="gpu:0"}': 35,
      'model_supervisor_memory_evictable_bytes{supervisor="s",device="gpu:0"}': 36,
      ...Object.fromEntries(histograms),
    });
  });

  it("prints the OpenMetrics format as well, and plain objects", async () => {
    const registry: Registry<RegistryContentType> = new Registry();
    registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
    collectMetrics(pretended("s", snapshotOf("m")), { registry });

    const { values, types } = await scrape(registry);
    expect(types).toMatchObject({ model_supervisor_loads: "counter", model_supervisor_load_seconds: "histogram" });
    expect(values).toMatchObject({
      'model_supervisor_loads_total{supervisor="s",model="m",trigger="call"}': 13,
      'model_supervisor_load_seconds_bucket{le="+Inf",supervisor="s",model="m"}': 101,
    });
    const plain = await registry.getMetricsAsJSON();
    expect(plain.find(({ name }) => name === "model_supervisor_load_seconds")?.values[0]).toMatchObject({
      labels: { supervisor: "s", model: "m", le: 0.5 },
      value: 1,
    });
  });

  it("counts no number twice when it is read again", async () => {
    const { registry } = collectMetrics(pretended("s", snapshotOf("m")));
    const first = await registry.metrics();

    expect(await registry.metrics()).toBe(first);
  });

  it("takes one snapshot for a scrape, and a new one for the next", async () => {
    let taken = 0;
    const manager = { ...pretended("s", snapshotOf("m")), metrics: () => snapshotOf(`m${++taken}`) };
    const { registry } = collectMetrics(manager);

    expect(await registry.metrics()).not.toContain("m2");
    expect(await registry.metrics()).not.toContain("m1");
    expect(taken).toBe(2);
  });

  it("escapes what an id may contain", async () => {
    const { registry } = collectMetrics(pretended("s", snapshotOf('a "b" \\ c')));

    expect(await registry.metrics()).toContain('in_flight{supervisor="s",model="a \\"b\\" \\\\ c"} 25');
  });

  it("puts several supervisors on one registry, and takes away one without the other", async () => {
    const registry = new Registry();
    const mine = new Counter({ name: "mine_total", help: "of the application", registers: [registry] });
    mine.inc(3);
    const one = await startTestSupervisor();
    const two = await startTestSupervisor();
    const first = collectMetrics(one.models, { registry });
    const second = collectMetrics(two.models, { registry });
    await one.models.load("a", "a.gguf");
    await two.models.load("a", "a.gguf");

    const both = await registry.metrics();
    expect(first.registry).toBe(registry);
    expect(both).toContain(`in_flight{supervisor="${one.models.name}",model="a"}`);
    expect(both).toContain(`in_flight{supervisor="${two.models.name}",model="a"}`);
    expect(both.match(/# TYPE model_supervisor_in_flight/g)).toHaveLength(1);

    first.unregister();
    first.unregister();
    const rest = await registry.metrics();
    expect(rest).not.toContain(`supervisor="${one.models.name}"`);
    expect(rest).toContain(`in_flight{supervisor="${two.models.name}",model="a"}`);

    second.unregister();
    expect(await registry.metrics()).not.toContain("model_supervisor");
    expect(await registry.metrics()).toContain("mine_total 3");
    collectMetrics(one.models, { registry });
    expect(await registry.metrics()).toContain(`in_flight{supervisor="${one.models.name}",model="a"}`);
  });

  it("is over when the supervisor is, so that the next of that name can take its place", async () => {
    const registry = new Registry();
    const { models } = await startTestSupervisor({ name: "again" });
    collectMetrics(models, { registry });
    await models.close();
    await settle();
    expect(await registry.metrics()).not.toContain("model_supervisor");

    const next = await startTestSupervisor({ name: "again" });
    collectMetrics(next.models, { registry });
    expect(await registry.metrics()).toContain('supervisor="again"');
  });

  it("registers anew on a registry that was cleared, which an older unregister leaves alone", async () => {
    const registry = new Registry();
    const old = collectMetrics(pretended("one", snapshotOf("m")), { registry });
    registry.clear();
    collectMetrics(pretended("two", snapshotOf("m")), { registry });
    old.unregister();

    const text = await registry.metrics();
    expect(text).toContain('supervisor="two"');
    expect(text).not.toContain('supervisor="one"');
  });

  it("refuses a registry that has this supervisor already, or a metric of one of the names, and options that it does not know", () => {
    const registry = new Registry();
    const manager = pretended("s", snapshotOf("m"));
    collectMetrics(manager, { registry });
    const foreign = new Registry();
    foreign.registerMetric(new Counter({ name: "model_supervisor_loads_total", help: "of another", registers: [] }));

    const refusal = (expected: string) => expect.objectContaining({ code: "invalid_option", expected });
    expect(() => collectMetrics(manager, { registry })).toThrow(
      refusal('one that does not have the metrics of "s" yet'),
    );
    expect(() => collectMetrics(manager, { registry: foreign })).toThrow(
      refusal("one without a metric named model_supervisor_loads_total"),
    );
    expect(foreign.getMetricsAsArray()).toHaveLength(1);
    expect(() => collectMetrics(manager, Object.assign({ registry }, { registery: foreign }))).toThrow(
      expect.objectContaining({ code: "invalid_option", option: "registery" }),
    );
  });

  it("is not harmed by listeners that throw", async () => {
    const { models } = await startTestSupervisor();
    const { registry } = collectMetrics(models);
    for (const name of ["model:loading", "model:ready", "request:end"] as const) {
      models.on(name, () => {
        throw new Error("listener");
      });
    }
    await models.load("a", "a.gguf");
    await models.generate("a", "hi");

    const { values } = await scrape(registry);
    expect(values[`model_supervisor_peak_in_flight{supervisor="${models.name}",model="a"}`]).toBe(1);
  });
});

/** As much of a manager as the adapter needs. */
function pretended(name: string, snapshot: MetricsSnapshot): ModelManager {
  const manager = { name, closed: new Promise(() => undefined), metrics: () => snapshot };
  return manager as unknown as ModelManager;
}

/** A number of its own for everything. */
function snapshotOf(modelId: string): MetricsSnapshot {
  const histogram = (first: number) => ({
    buckets: [
      { upTo: 0.5, count: first },
      { upTo: 2, count: first + 10 },
    ],
    sum: first + 0.25,
    count: first + 100,
  });
  return {
    models: [
      {
        modelId,
        isReady: true,
        reservedBytes: 27,
        loads: { eager: 11, request: 12, call: 13 },
        failedLoads: 14,
        cancelledLoads: 15,
        joinedLoads: 16,
        loadSeconds: histogram(1),
        coldStartSeconds: histogram(2),
        queueSeconds: histogram(3),
        unloads: { caller: 17, ttl: 18, eviction: 19, close: 20, crash: 21 },
        evictionIdleSeconds: histogram(4),
        requests: { done: 22, aborted: 23, failed: 24 },
        inFlight: 25,
        peakInFlight: 26,
      },
    ],
    devices: [
      {
        device: "gpu:0",
        limitBytes: 31,
        reservedBytes: 32,
        measuredBytes: 33,
        availableBytes: 34,
        evictableBytes: 36,
        refusals: 35,
      },
    ],
  };
}
