import { readFile, readdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { inspect } from "node:util";
import { beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { ModelSupervisor, nodeLlamaCpp } from "../../../../src/index.js";
import type { ModelManager } from "../../../../src/index.js";
import { makeRecitingModel } from "../../../../src/testing/index.js";
import { HubServer, type HubOptions } from "../../../support/hub-server.js";
import { TOKEN, bytes, failureOf, temporaryFolder } from "./sources-fixture.js";

const REPO = "maker/Story-GGUF";
const SOURCE = `hf:${REPO}:Q8_0`;
const OPTIONS = { contextSize: 64, parallel: 1 };

let folder: string;

// nothing of the machine's real folders and tokens is touched
beforeEach(async () => {
  folder = await temporaryFolder();
  onTestFinished(() => void vi.unstubAllEnvs());
  for (const name of ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "LLAMA_CACHE", "MODEL_ENDPOINT"])
    vi.stubEnv(name, undefined);
  vi.stubEnv("HOME", folder);
  vi.stubEnv("TMPDIR", folder);
  vi.stubEnv("USERPROFILE", folder);
  vi.stubEnv("XDG_CACHE_HOME", path.join(folder, "caches"));
});

async function startHub(options: HubOptions = {}): Promise<HubServer> {
  const hub = await HubServer.start(options);
  vi.stubEnv("HF_ENDPOINT", hub.endpoint);
  return hub;
}

async function start(said: unknown[] = []): Promise<ModelManager> {
  const logger = { warn: (...args: unknown[]) => said.push(args) };
  const modelsDir = path.join(folder, "models");
  const models = await ModelSupervisor.start({
    name: folder,
    memoryBudget: "unlimited",
    maxThreads: 1,
    modelsDir,
    logger,
  });
  onTestFinished(() => models.close());
  return models;
}

async function putStory(hub: HubServer): Promise<void> {
  const [file] = await makeRecitingModel(path.join(folder, "story.gguf"), { text: "once upon a time." });
  hub.put(REPO, "story-q8_0.gguf", await readFile(file));
  hub.putQuant(REPO, "Q8_0", "story-q8_0.gguf");
}

describe("a supervisor", () => {
  it("loads a model from the hub, tells how far it is, and needs no hub for it from then on", async () => {
    const hub = await startHub({ token: TOKEN });
    vi.stubEnv("HF_TOKEN", TOKEN);
    await putStory(hub);
    const models = await start();
    const phases: string[] = [];
    let downloaded = 0;

    const planned = await models.plan(SOURCE, OPTIONS);
    expect(planned).toMatchObject({ outcome: "fits" });
    expect(await readdir(folder)).toEqual(["story.gguf"]);
    await models.load("story", SOURCE, {
      ...OPTIONS,
      onProgress: ({ phase, fraction }) => {
        phases.push(phase);
        if (phase === "download") downloaded = fraction;
      },
    });
    const { text } = await models.generate("story", "", { temperature: 0 });

    expect(text).toBe("once upon a time.");
    expect([...new Set(phases)]).toEqual(["resolve", "download", "estimate", "start"]);
    expect(downloaded).toBe(1);
    expect(models.info("story")?.source).toBe(SOURCE);

    // nobody answers there any more
    vi.stubEnv("HF_ENDPOINT", "http://127.0.0.1:9");
    const again = await models.plan(SOURCE, OPTIONS);
    expect(again).toEqual({ ...planned, requiredBytes: again.requiredBytes });
    // the weights are there
    expect(again.requiredBytes).toBeLessThan(planned.requiredBytes);
    await models.load("again", SOURCE, OPTIONS);
    expect((await models.generate("again", "", { temperature: 0 })).text).toBe(text);
  });

  it("cancels a download with its load, at once, and closes", async () => {
    const hub = await startHub();
    hub.put(REPO, "big.gguf", bytes(1));
    hub.fail("body", { stallAfter: 1000 });
    const models = await start();
    const controller = new AbortController();
    const reason = new Error("changed my mind");

    const unloaded = failureOf(models.load("a", `hf:${REPO}/big.gguf`));
    const aborted = failureOf(models.load("b", `hf:${REPO}/big.gguf`, { signal: controller.signal }));
    const closed = failureOf(models.load("c", `hf:${REPO}/big.gguf`));
    await hub.stalled();
    controller.abort(reason);
    await models.unload("a");
    await models.close();

    expect(await aborted).toBe(reason);
    expect(await unloaded).toMatchObject({ code: "load_cancelled", modelId: "a" });
    expect(await closed).toMatchObject({ code: "load_cancelled", modelId: "c" });
  });

  it("shows the token nowhere: not in the error, not in the state, not in an event, not to the logger", async () => {
    const hub = await startHub({ token: TOKEN });
    vi.stubEnv("HF_TOKEN", undefined);
    await writeFile(path.join(folder, "token"), `${TOKEN}\n`);
    vi.stubEnv("HF_TOKEN_PATH", path.join(folder, "token"));
    await putStory(hub);
    hub.fail("body", { corrupt: true });
    const said: unknown[] = [];
    const models = await start(said);
    models.on("model:error", (event) => said.push(event));

    said.push(await failureOf(models.load("story", SOURCE)), models.list(), models.tree());

    expect(hub.bodiesSent()).not.toEqual([]);
    const shown = inspect(said, { depth: Infinity, showHidden: true }) + JSON.stringify(said);
    expect(shown).toContain("checksum");
    expect(shown).not.toContain(TOKEN);
    expect(shown).not.toContain("cdn-secret");
  });

  it("does not show a URL's query as the source of a model", async () => {
    const hub = await startHub();
    const models = await start();

    const error = await failureOf(models.load("a", `${hub.endpoint}/a.gguf?signature=secret`));
    const planned = await failureOf(models.plan(`${hub.endpoint}/a.gguf?signature=secret`));

    for (const each of [error, planned, models.list()])
      expect(inspect(each, { depth: Infinity })).not.toContain("secret");
  });

  it.each([
    ["HF_ENDPOINT", "http://hub.example"],
    ["HF_ENDPOINT", "nonsense"],
    ["HF_TOKEN", `${TOKEN}\nx`],
  ])("refuses a %s that it must not use: %j", async (name, value) => {
    const hub = await startHub();
    await putStory(hub);
    vi.stubEnv(name, value);
    const models = await start();

    const error = await failureOf(models.load("story", SOURCE));

    expect(error).toMatchObject({ code: "invalid_option", option: name });
    expect(inspect(error)).not.toContain(TOKEN);
  });

  it("puts downloads into the library's folder unless it is told another", async () => {
    const hub = await startHub();
    await putStory(hub);
    const models = await ModelSupervisor.start({ name: folder, memoryBudget: "unlimited", backend: nodeLlamaCpp() });
    onTestFinished(() => models.close());

    await models.load("story", SOURCE, OPTIONS);

    const inLibrary = path.join(folder, ".node-llama-cpp", "models", "models--maker--Story-GGUF");
    expect(await readFile(path.join(inLibrary, "refs", "main"), "utf8")).toMatch(/^[0-9a-f]{40}$/);
  });
});
