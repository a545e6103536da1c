import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  CalibrationFile,
  type CalibrationKey,
} from "../../../../src/backends/node-llama-cpp/layout/calibration-file.js";
import type { Calibration } from "../../../../src/backends/node-llama-cpp/layout/layout.js";

async function folder(): Promise<string> {
  const made = await mkdtemp(path.join(tmpdir(), "calibration-"));
  onTestFinished(() => rm(made, { recursive: true }));
  return made;
}

const key = (changes: Partial<CalibrationKey> = {}): CalibrationKey => ({
  file: { name: "a.gguf", sizeBytes: 1_000, modifiedMs: 5 },
  engine: "b1 prebuilt false",
  options: { parallel: 8 },
  ...changes,
});

const found: Calibration = {
  spread: { contexts: 2, threads: 1 },
  steps: [{ width: 4, ms: 1.5 }],
  measurements: [{ contexts: 2, threadsPerContext: 1, singleTokensPerSecond: 10, fullTokensPerSecond: 20 }],
};

describe("CalibrationFile", () => {
  it("recalls what was remembered for the same file, engine and options, and for no others", async () => {
    const file = path.join(await folder(), "deep", "calibrations.json");
    await new CalibrationFile(file).remember(key(), found);

    const memory = new CalibrationFile(file);
    expect(await memory.recall(key())).toEqual(found);
    expect(await memory.recall(key({ file: { name: "a.gguf", sizeBytes: 1_000, modifiedMs: 6 } }))).toBeUndefined();
    expect(await memory.recall(key({ engine: "b2 prebuilt false" }))).toBeUndefined();
    expect(await memory.recall(key({ options: { parallel: 9 } }))).toBeUndefined();
  });

  it("keeps what others have remembered, and leaves no other file behind", async () => {
    const home = await folder();
    const file = path.join(home, "calibrations.json");
    await new CalibrationFile(file).remember(key(), found);
    await new CalibrationFile(file).remember(key({ engine: "other" }), found);

    expect(await new CalibrationFile(file).recall(key())).toEqual(found);
    expect(await readdir(home)).toEqual(["calibrations.json"]);
  });

  it.each(["", "{", "[]", '{"version":1,"entries":{"x":{"spread":{"contexts":-1}}}}', '{"version":99,"entries":{}}'])(
    "holds nothing if its content is %j, and can be written again",
    async (content) => {
      const file = path.join(await folder(), "calibrations.json");
      await writeFile(file, content);
      const memory = new CalibrationFile(file);

      expect(await memory.recall(key())).toBeUndefined();
      await memory.remember(key(), found);
      expect(await memory.recall(key())).toEqual(found);
    },
  );

  it("does without a place that cannot be written", async () => {
    const file = path.join(await folder(), "a-file");
    await writeFile(file, "");
    const memory = new CalibrationFile(path.join(file, "calibrations.json"));

    await memory.remember(key(), found);

    expect(await memory.recall(key())).toBeUndefined();
  });
});
