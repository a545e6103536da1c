import { stat } from "node:fs/promises";
import { beforeAll, describe, expect, it } from "vitest";
import { corruptFile, corruptions, makeRandomModel, type Corruption } from "../../../src/testing/gguf/index.js";
import { bareEngine, complete, useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const inFolder = useTemporaryFolder();
let whole = "";

beforeAll(async () => {
  [whole] = await makeRandomModel(inFolder("whole.gguf"));
});

describe("corruptFile", () => {
  it.each(corruptions.filter((kind) => kind !== "nan-weights"))("makes a copy that does not load: %s", async (kind) => {
    const bad = await corruptFile(kind, whole, inFolder(`${kind}.gguf`));

    await expect(withModel(bad, async () => "loaded")).rejects.toThrow(/Failed to load model|magic/);
  });

  it("makes a copy that fails the check of its tensors only: nan-weights", async () => {
    const bad = await corruptFile("nan-weights", whole, inFolder("nan.gguf"));

    const engine = await bareEngine();
    await expect(engine.loadModel({ modelPath: bad, checkTensors: true })).rejects.toThrow("Failed to load model");
    expect(await withModel(bad, async () => "loaded")).toBe("loaded");
  });

  it("leaves the original whole", async () => {
    expect(await withModel(whole, (model) => complete(model, "hello", 3))).not.toBe("");
    expect((await stat(whole)).size).toBeGreaterThan(1e6);
  });

  it("refuses a kind that it does not know", async () => {
    const kind: Corruption = JSON.parse('"burnt"');

    await expect(corruptFile(kind, whole, inFolder("bad.gguf"))).rejects.toThrow('Option "kind"');
  });
});
