import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { beginEvaluating } from "../../../../src/backends/node-llama-cpp/engine-activity.js";
import { ModelSupervisor, nodeLlamaCpp, type LoadOptions } from "../../../../src/index.js";
import { makeRecitingModel } from "../../../../src/testing/index.js";

const TEXT = "seven wise owls sat in a tall green tree";
let home: string;
let file: string;
let made = 0;

beforeAll(async () => {
  home = await mkdtemp(path.join(tmpdir(), "layout-"));
  [file] = await makeRecitingModel(path.join(home, "reciting.gguf"), { text: TEXT });
  return () => rm(home, { recursive: true });
});

const newMemory = () => path.join(home, `calibrations-${made++}.json`);

/** Loads the model, and generates on all of its slots at once. */
async function load(options: LoadOptions, maxThreads: number, calibrationFile: string | false) {
  await using models = await ModelSupervisor.start({
    name: `layout-${made++}`,
    backend: nodeLlamaCpp({ calibrationFile }),
    memoryBudget: "unlimited",
    maxThreads,
  });
  const plan = await models.plan(file, { contextSize: 64, ...options });
  const { layout, placement } = await models.load("m", file, { contextSize: 64, ...options });
  const texts = await Promise.all(
    Array.from({ length: options.parallel ?? 1 }, () => models.generate("m", "say it", { temperature: 0 })),
  );
  return { layout, planned: plan.placement, placement, texts: new Set(texts.map(({ text }) => text.trim())) };
}

describe("the layout of a model's slots", () => {
  it("is not measured where there is no choice", async () => {
    const { layout, texts } = await load({ parallel: 4 }, 1, newMemory());

    expect(layout).toEqual({
      contexts: 1,
      threadsPerContext: 1,
      decodeWidth: 4,
      chosenBy: "options",
      measurements: [],
    });
    expect(texts).toEqual(new Set([TEXT]));
  });

  it("is measured at the first load, remembered at the second, and right in both", async () => {
    const memory = newMemory();
    const first = await load({ parallel: 6 }, 1, memory);
    const second = await load({ parallel: 6 }, 1, memory);

    expect(first.layout).toMatchObject({ contexts: 1, threadsPerContext: 1, chosenBy: "measured" });
    expect(first.layout?.measurements).toHaveLength(1);
    expect(second.layout).toEqual({ ...first.layout, chosenBy: "remembered" });
    expect([first.texts, second.texts]).toEqual([new Set([TEXT]), new Set([TEXT])]);
  });

  it("is measured once for all that are loaded at the same time", async () => {
    await using models = await ModelSupervisor.start({
      name: `layout-${made++}`,
      backend: nodeLlamaCpp({ calibrationFile: newMemory() }),
      memoryBudget: "unlimited",
      maxThreads: 1,
    });
    const loads = ["a", "b", "c"].map((id) => models.load(id, file, { contextSize: 64, parallel: 6 }));
    const layouts = (await Promise.all(loads)).map(({ layout }) => layout);

    const measured = layouts.filter((layout) => layout?.chosenBy === "measured");
    const remembered = layouts.filter((layout) => layout?.chosenBy === "remembered");
    expect([measured.length, remembered.length]).toEqual([1, 2]);
    expect(new Set(layouts.map((layout) => layout?.decodeWidth)).size).toBe(1);
  });

  it("is not measured when that is switched off, nor while the engine has something else to do", async () => {
    const off = await load({ parallel: 6 }, 1, false);
    const end = beginEvaluating();
    const busy = await load({ parallel: 6 }, 1, newMemory());
    end();

    const unmeasured = { contexts: 1, threadsPerContext: 1, decodeWidth: 6, chosenBy: "default", measurements: [] };
    expect([off.layout, busy.layout]).toEqual([unmeasured, unmeasured]);
  });

  it("keeps to a decodeWidth that was set", async () => {
    const { layout, texts } = await load({ parallel: 6, decodeWidth: 2 }, 1, newMemory());

    expect(layout).toMatchObject({ decodeWidth: 2, chosenBy: "options" });
    expect(texts).toEqual(new Set([TEXT]));
  });
});
