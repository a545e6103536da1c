import { describe, expect, it } from "vitest";
import { nodeLlamaCpp } from "../../../src/index.js";

describe("nodeLlamaCpp", () => {
  it.each<{ name: string; value: unknown; expected: string }>([
    { name: "gpu", value: "cpu", expected: '"auto", "metal", "cuda", "vulkan" or false' },
    { name: "build", value: "always", expected: '"never", "auto", "try" or "forceRebuild"' },
    { name: "calibrationFile", value: true, expected: "the path of a file, or false" },
    { name: "calibrationFile", value: 5, expected: "the path of a file, or false" },
    { name: "calibrationFile", value: "", expected: "the path of a file, or false" },
    { name: "modelsDir", value: 5, expected: "the path of a folder" },
    { name: "modelsDir", value: "", expected: "the path of a folder" },
    { name: "modelDir", value: "models", expected: 'a known name (did you mean "modelsDir"?)' },
  ])("refuses $name: $value", ({ name, value, expected }) => {
    expect(() => nodeLlamaCpp(Object.fromEntries([[name, value]]))).toThrow(
      expect.objectContaining({ code: "invalid_option", option: name, expected, received: JSON.stringify(value) }),
    );
  });

  it("takes each of its options, and none", () => {
    const options = { gpu: false, build: "try", calibrationFile: false, modelsDir: "models" } as const;

    expect([nodeLlamaCpp(options).name, nodeLlamaCpp().name]).toEqual(["node-llama-cpp", "node-llama-cpp"]);
  });
});
