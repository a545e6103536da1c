import { DEFAULT_MODEL, ModelSupervisor, isModelSupervisorError, nodeLlamaCpp } from "model-supervisor";
import type { MetricsSnapshot, ModelManager } from "model-supervisor";
import { collectMetrics } from "model-supervisor/metrics";
import { FakeBackend, makeRecitingModel, SimulatedClock } from "model-supervisor/testing";

export async function use(models: ModelManager): Promise<string> {
  await makeRecitingModel("model.gguf", { text: "hello" });
  await using other = await ModelSupervisor.start({ name: "other", backend: nodeLlamaCpp({ gpu: false }) });
  await ModelSupervisor.start({ backend: new FakeBackend(), clock: new SimulatedClock() });
  try {
    return (await other.generate(DEFAULT_MODEL, "hi", { maxTokens: 3 })).text;
  } catch (error) {
    if (isModelSupervisorError(error, "queue_full")) return `${error.queued} of ${error.limit}`;
    return models.name;
  }
}

export async function scrape(models: ModelManager): Promise<{ text: string; snapshot: MetricsSnapshot }> {
  const { registry, unregister } = collectMetrics(models);
  const text = await registry.metrics();
  unregister();
  return { text, snapshot: models.metrics() };
}
