import { writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import path from "node:path";
import { beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { sourceSettings } from "../../../../src/backends/node-llama-cpp/sources/settings.js";
import { temporaryFolder } from "./sources-fixture.js";

const home = (...segments: string[]) => path.join(homedir(), ...segments);

beforeEach(() => {
  onTestFinished(() => void vi.unstubAllEnvs());
  for (const name of ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "LLAMA_CACHE"])
    vi.stubEnv(name, undefined);
  vi.stubEnv("MODEL_ENDPOINT", undefined);
  vi.stubEnv("XDG_CACHE_HOME", undefined);
});

describe("where models are looked for", () => {
  it("is where the tools of this field put them, unless it is said otherwise", () => {
    const settings = sourceSettings(undefined);

    expect(settings.modelsDir).toBe(home(".node-llama-cpp", "models"));
    expect(settings.libraryDirs).toEqual([settings.modelsDir]);
    expect(settings.hubCaches.slice(0, 2)).toEqual([settings.modelsDir, home(".cache", "huggingface", "hub")]);
    expect(settings.llamaCaches[0]).toMatch(/llama\.cpp$/);
    expect(settings.endpoint.href).toBe("https://huggingface.co/");
  });

  it.each([
    [{ HF_HUB_CACHE: "/a", HF_HOME: "/b", XDG_CACHE_HOME: "/c" }, "/a"],
    [{ HF_HOME: "/b", XDG_CACHE_HOME: "/c" }, "/b/hub"],
    [{ XDG_CACHE_HOME: "/c" }, "/c/huggingface/hub"],
  ])("follows %o to the hub's cache", (variables, expected) => {
    for (const [name, value] of Object.entries(variables)) vi.stubEnv(name, value);
    vi.stubEnv("LLAMA_CACHE", "/llama");

    const { hubCaches, libraryDirs, llamaCaches } = sourceSettings("/models");

    expect(hubCaches).toEqual(["/models", expected, "/llama"].map((folder) => path.resolve(folder)));
    expect(libraryDirs).toEqual([path.resolve("/models"), home(".node-llama-cpp", "models")]);
    expect(llamaCaches).toEqual([path.resolve("/llama")]);
  });
});

describe("the token", () => {
  it("is HF_TOKEN, else what is in the file of HF_TOKEN_PATH, else of HF_HOME, else none", async () => {
    const folder = await temporaryFolder();
    const token = () => sourceSettings(undefined).token();
    vi.stubEnv("HF_HOME", folder);
    expect(await token()).toBeUndefined();

    await writeFile(path.join(folder, "token"), "hf_home\n");
    expect(await token()).toBe("hf_home");

    await writeFile(path.join(folder, "other"), "hf_path\n");
    vi.stubEnv("HF_TOKEN_PATH", path.join(folder, "other"));
    vi.stubEnv("HF_TOKEN", "");
    expect(await token()).toBe("hf_path");

    vi.stubEnv("HF_TOKEN", " hf_itself\n");
    expect(await token()).toBe("hf_itself");
  });
});
