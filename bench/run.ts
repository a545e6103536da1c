/** `npm run bench [name …]`: runs the benchmarks and writes their figures under bench/results. */
import { execFileSync, fork } from "node:child_process";
import { writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import packageJson from "../package.json" with { type: "json" };
import { calibrated } from "./calibrated.js";
import { coldStart } from "./cold-start.js";
import { cycles } from "./cycles.js";
import { disposeUnderLoad } from "./dispose-under-load.js";
import { eightStreams } from "./eight-streams.js";
import { eventLoop } from "./event-loop.js";
import { fugood } from "./fugood.js";
import { hotPath } from "./hot-path.js";
import { llamaServer } from "./llama-server.js";
import { loadBesideStream } from "./load-beside-stream.js";
import { loadOverhead } from "./load-overhead.js";
import { manyModels } from "./many-models.js";
import { oneStream } from "./one-stream.js";
import { planAccuracy } from "./plan-accuracy.js";
import { prefill } from "./prefill.js";
import { prefixReuse } from "./prefix-reuse.js";
import { serverSoak } from "./server-soak.js";
import { soak, SOAK_ENVIRONMENT } from "./soak.js";
import { isQuick, table } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { threads } from "./threads.js";

const benchmarks: Record<string, () => Promise<Figure[]>> = {
  "hot-path": hotPath,
  "load-overhead": loadOverhead,
  "plan-accuracy": planAccuracy,
  cycles,
  "dispose-under-load": disposeUnderLoad,
  threads,
  "prefix-reuse": prefixReuse,
  "one-stream": oneStream,
  "eight-streams": eightStreams,
  calibrated,
  "llama-server": llamaServer,
  fugood,
  prefill,
  "event-loop": eventLoop,
  "server-soak": serverSoak,
  "many-models": manyModels,
  "cold-start": coldStart,
  "load-beside-stream": loadBesideStream,
  soak,
};

/** What has to be in the environment when a process begins. */
const environments: Record<string, NodeJS.ProcessEnv> = { soak: SOAK_ENVIRONMENT };

/** Each in a process of its own, so that none runs in what another has left behind. */
function inChild(name: string): Promise<Figure[]> {
  return new Promise((resolve, reject) => {
    const child = fork(fileURLToPath(import.meta.url), [CHILD, name], {
      execArgv: ["--import", "tsx"],
      env: { ...process.env, ...environments[name] },
    });
    let figures: Figure[] | undefined;
    child.on("message", (message) => (figures = message as Figure[]));
    child.on("exit", (code) => (figures ? resolve(figures) : reject(new Error(`${name} ended with ${code}`))));
  });
}

const CHILD = "--child";
const asked = process.argv.slice(2);
if (asked[0] === CHILD) {
  process.send?.(await benchmarks[asked[1] ?? ""]?.());
  process.disconnect();
  process.exit();
}
const names = Object.keys(benchmarks).filter((name) => asked.length === 0 || asked.includes(name));
const sections: string[] = [];
let missed = 0;
for (const name of names) {
  process.stdout.write(`${name} …\n`);
  const figures = await inChild(name);
  missed += figures.filter((figure) => figure.met === false).length;
  const text = table(figures);
  process.stdout.write(`${text}\n\n`);
  sections.push(`## ${name}\n\n${text}`);
}

const sha = execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim();
const date = new Date().toISOString().slice(0, 10);
const cpu = os.cpus()[0]?.model ?? "unknown CPU";
const head = [
  `# Benchmark results, ${date}`,
  "",
  `model-supervisor ${packageJson.version} (${sha}), node-llama-cpp ${packageJson.dependencies["node-llama-cpp"]}, Node ${process.version}, ` +
    `${os.availableParallelism()} CPUs of ${cpu.trim()}, ${Math.round(os.totalmem() / 2 ** 30)} GiB RAM, no GPU.`,
  "",
  "Medians; what is compared ran interleaved in one process, each benchmark in a process of its own. A shared machine: expect some per cent of noise.",
];
if (asked.length === 0 && !isQuick) {
  const file = path.join(path.dirname(fileURLToPath(import.meta.url)), "results", `${date}-${packageJson.version}.md`);
  await writeFile(file, `${head.join("\n")}\n\n${sections.join("\n\n")}\n`);
  process.stdout.write(`Written: ${path.relative(process.cwd(), file)}\n`);
}
process.exitCode = missed === 0 ? 0 : 1;
