/** What the supervisor does, in one run on two real models that this repository makes itself: `npm start`. */
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { ModelSupervisor, isModelSupervisorError } from "../src/index.js";
import type { LoadProgress, ModelManager } from "../src/index.js";
import { demoModels } from "./models/index.js";

const CACHE = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", ".cache", "models");

const say = (text = "") => process.stdout.write(`${text}\n`);
const heading = (text: string) => say(`\n— ${text}`);
const mib = (bytes: number | null) => (bytes === null ? "unlimited" : `${(bytes / 1024 ** 2).toFixed(1)} MiB`);

/** One line that grows on a terminal; elsewhere a line when the model is there. */
function progressLine({ modelId, phase, fraction }: LoadProgress): void {
  const isThere = phase === "start" && fraction === 1;
  const bar = "█".repeat(Math.round(fraction * 20)).padEnd(20, "·");
  if (process.stdout.isTTY) process.stdout.write(`\r  ${modelId.padEnd(6)} ${bar} ${phase.padEnd(8)}`);
  else if (isThere) say(`  ${modelId.padEnd(6)} ${bar} ${phase}`);
}

function showTables(models: ModelManager): void {
  for (const { id, status, mode, capabilities, placement, leases } of models.list()) {
    const bytes = Object.entries(placement).map(([device, held]) => `${device} ${mib(held ?? 0)}`);
    say(
      `  ${id.padEnd(6)} ${status.padEnd(10)} ${(mode ?? "").padEnd(7)} ${capabilities.join(", ").padEnd(15)} ${bytes.join(", ")}, leases ${leases}`,
    );
  }
  for (const { device, reservedBytes, limitBytes, availableBytes } of models.memory().devices) {
    say(`  device ${device}: ${mib(reservedBytes)} reserved of ${mib(limitBytes)}, ${mib(availableBytes)} available`);
  }
}

const reservedBytes = (models: ModelManager) =>
  models.memory().devices.reduce((sum, { reservedBytes: bytes }) => sum + bytes, 0);

const cosine = (a: readonly number[], b: readonly number[]) =>
  a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);

const began = performance.now();
heading("Two small GGUF models, computed from this project's own documents");
const files = await demoModels(CACHE);
say(`  in ${path.relative(process.cwd(), CACHE)} after ${((performance.now() - began) / 1000).toFixed(1)} s`);

await using models = await ModelSupervisor.start({
  memoryBudget: { ram: "512MiB", gpu: "auto" },
  sweepIntervalMs: 100,
});

heading("Loading both");
await models.load("chat", files.chat, { default: true, contextSize: 512, onProgress: progressLine });
if (process.stdout.isTTY) say();
await models.load("embed", files.embed, { onProgress: progressLine });
if (process.stdout.isTTY) say();

heading("Streaming from the default model");
const prompt = "The manager";
process.stdout.write(`  ${prompt}`);
const stream = models.stream("@default", prompt, { maxTokens: 40, seed: 7 });
for await (const piece of stream) process.stdout.write(piece);
const { finishReason, usage, timings } = await stream.result;
say(`\n  (${finishReason}, ${usage.completionTokens} tokens, first after ${timings.timeToFirstTokenMs.toFixed(0)} ms)`);

heading("Sentences by closeness");
const question = "How much memory may the models use?";
const sentences = [
  "Every test runs without sleeps, on a simulated clock.",
  "The budget limits the bytes that are reserved on each device.",
  "A stream ends when its consumer leaves the loop.",
];
const { embeddings } = await models.embedMany("embed", [question, ...sentences]);
const [asked = [], ...others] = embeddings;
const ranked = sentences
  .map((sentence, index) => ({ sentence, score: cosine(asked, others[index] ?? []) }))
  .toSorted((a, b) => b.score - a.score);
say(`  ${question}`);
for (const { sentence, score } of ranked) say(`  ${score.toFixed(2).padStart(5)}  ${sentence}`);

heading("Models and memory");
showTables(models);

heading("A load that does not fit is refused before anything is touched");
try {
  await models.load("huge", files.chat, { contextSize: 8192, parallel: 256 });
} catch (error) {
  if (!isModelSupervisorError(error, "insufficient_memory")) throw error;
  say(
    `  ${error.code} on device "${error.device}": ${mib(error.requiredBytes)} needed, ${mib(error.availableBytes)} available`,
  );
}

heading("A backing that dies takes nothing else with it");
const down = new Promise<void>((resolve) => models.once("model:error", () => resolve()));
{
  using lease = await models.acquire("chat");
  await disposeBehindTheBack(lease.native);
}
await down;
say(`  chat: ${models.info("chat")?.status} (${models.info("chat")?.error?.code})`);
const { embedding } = await models.embed("embed", "still here");
say(`  embed: ${models.info("embed")?.status}, answers with ${embedding.length} numbers`);
await models.load("chat");
say(`  chat, loaded again: ${models.info("chat")?.status}`);

heading("A lazy model on the file of another: loaded by its first request, gone when nobody uses it");
await models.register("judge", files.chat, { contextSize: 256, parallel: 1, ttlMs: 300 });
say(`  judge: ${models.info("judge")?.status}`);
const without = reservedBytes(models);
const { text } = await models.generate("judge", prompt, { maxTokens: 8, temperature: 0 });
say(`  judge: ${models.info("judge")?.status}, says "${text.trim()}"`);
say(`  it shares the weights, and adds ${mib(reservedBytes(models) - without)}`);
const gone = new Promise<void>((resolve) => models.once("model:unloaded", () => resolve()));
// an idle model keeps no process alive
await Promise.all([gone, sleep(500)]);
say(`  judge, 300 ms after its last use: ${models.info("judge")?.status}`);

heading("Unloading");
await models.unload("chat");
await models.unload("embed");
showTables(models);
say(`\nDone in ${((performance.now() - began) / 1000).toFixed(1)} s.`);

/** What no application should do, and what the supervisor must survive: the engine's model goes away under it. */
async function disposeBehindTheBack(native: unknown): Promise<void> {
  if (typeof native === "object" && native !== null && "dispose" in native && typeof native.dispose === "function") {
    await native.dispose();
  }
}
