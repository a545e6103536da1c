/** Plans files with flipped bytes in their metadata; each flip is told before it is tried, for a crash tells nothing. */
import { readFile, writeFile } from "node:fs/promises";
import { nodeLlamaCpp } from "../../../src/backends/node-llama-cpp/index.js";

const [, , rounds, ...files] = process.argv;
const HEADER_BYTES = 25_000;
const signal = new AbortController().signal;
const backend = nodeLlamaCpp({ gpu: false });
let seed = 20;
const random = (limit: number) => {
  seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff;
  return Math.floor((seed / 0x7fffffff) * limit);
};

async function tryFlips(file: string, sound: Buffer): Promise<void> {
  const bytes = Buffer.from(sound);
  const flips = Array.from({ length: 1 + random(2) }, () => [
    random(random(2) === 0 ? 1_500 : HEADER_BYTES),
    random(256),
  ]);
  for (const [at = 0, value = 0] of flips) bytes[at] = value;
  await writeFile(`${file}.flipped`, bytes);
  process.send?.([file, ...flips]);
  try {
    const model = await backend.resolve(`${file}.flipped`, {}, signal);
    const { defaultCapabilities: capabilities } = model;
    const profile = { mode: "server", capabilities, contextSize: 64, parallel: 1, threads: 1, maxQueue: 1 } as const;
    await backend.estimate(model, profile);
  } catch {
    // a refusal, which is what is hoped for; what must not happen is the end of this process
  }
}

for (const file of files) {
  const sound = await readFile(file);
  for (let round = 0; round < Number(rounds); round++) await tryFlips(file, sound);
}
process.exit(0);
