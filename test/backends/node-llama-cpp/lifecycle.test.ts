import { execFile } from "node:child_process";
import { copyFile, truncate, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { LlamaModel } from "node-llama-cpp";
import { beforeAll, describe, expect, it, vi } from "vitest";
import { sharedEngine } from "../../../src/backends/node-llama-cpp/engine.js";
import { nodeLlamaCpp } from "../../../src/backends/node-llama-cpp/index.js";
import { corruptFile, makeEmbeddingModel, makeRandomModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { backend, GREEDY, method, never, profileOf, request, resolve, start, startResolved } from "./engine-fixture.js";

const at = useTemporaryFolder();
let random = "";
let encoder = "";

beforeAll(async () => {
  [random] = await makeRandomModel(at("random.gguf"));
  [encoder] = await makeEmbeddingModel(at("encoder.gguf"));
});

/** What the engine holds for all models of this process. */
const held = async () => (await (await sharedEngine({ gpu: "auto", build: "never" })).getLlamaMemoryUsage()).cpuRam;

const LONG = { ...GREEDY, maxTokens: 200 };

describe("devices", () => {
  it("tells the RAM that this process may use, and of it what is free", async () => {
    const [ram] = await backend.devices();

    expect(ram).toMatchObject({ device: "ram" });
    expect(ram?.freeBytes).toBeGreaterThan(0);
    expect(ram?.freeBytes).toBeLessThanOrEqual(ram?.totalBytes ?? 0);
  });

  it("refuses another kind of GPU than the engine of this process runs with", async () => {
    await backend.devices();

    await expect(nodeLlamaCpp({ gpu: "vulkan" }).devices()).rejects.toMatchObject({
      code: "invalid_option",
      option: "gpu",
    });
    await expect(nodeLlamaCpp({ gpu: false }).devices()).resolves.toHaveLength(1);
  });

  it("refuses another choice of build, which would have no effect, and compiles nothing where none is made", async () => {
    await backend.devices();

    await expect(nodeLlamaCpp({ build: "forceRebuild" }).devices()).rejects.toMatchObject({
      code: "invalid_option",
      option: "build",
      message: expect.stringContaining('"never"'),
    });
    await expect(nodeLlamaCpp({ build: "never" }).devices()).resolves.toHaveLength(1);
  });
});

describe("start", () => {
  it("has the methods of the capabilities and no others, and tells the progress", async () => {
    const progress: number[] = [];
    const backing = await start(
      random,
      { capabilities: ["generate"] },
      { onProgress: (fraction) => progress.push(fraction) },
    );

    expect(["generate", "chat", "embed", "rank", "tokenize", "detokenize"].filter((name) => name in backing)).toEqual([
      "generate",
      "tokenize",
      "detokenize",
    ]);
    expect(backing.native).toBeInstanceOf(LlamaModel);
    expect(progress.at(-1)).toBe(1);
    expect(progress).toEqual(progress.toSorted((a, b) => a - b));
  });

  it("gives everything back when it is aborted at any moment, and rejects with the reason", async () => {
    const model = await resolve(random);
    const before = await held();
    const reason = new Error("no longer wanted");
    const outcomes = new Set<unknown>();
    for (let turns = 0; turns < 60; turns += 1) {
      const controller = new AbortController();
      const starting = startResolved(model, profileOf(model, { capabilities: ["generate", "embed"], mode: "server" }), {
        signal: controller.signal,
      });
      for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
      controller.abort(reason);
      const started = starting.then((backing) => backing.dispose());
      outcomes.add(
        await started.then(
          () => "started",
          (error: unknown) => error,
        ),
      );
      expect(await held()).toBe(before);
    }
    outcomes.delete("started");
    expect([...outcomes]).toEqual([reason]);
  });

  it("has given everything back when it rejects, also when some of its contexts are there already", async () => {
    const model = await resolve(random);
    const before = await held();
    const resident = (await start(random)).memory().ramBytes;
    for (let round = 0; round < 10; round++) {
      const controller = new AbortController();
      const starting = startResolved(model, profileOf(model, { capabilities: ["generate", "embed"], mode: "server" }), {
        signal: controller.signal,
        // the weights are there; the contexts are made in the turns after that
        onProgress: (fraction) => {
          if (fraction === 1) setTimeout(() => controller.abort(new Error("no longer wanted")), round);
        },
      });

      const outcome = await starting.then((backing) => backing.dispose()).catch((error: unknown) => error);

      expect(await held(), String(outcome)).toBe(before + resident);
    }
  });

  it.each(["silent", "heard"])(
    "leaves nothing behind that keeps the process from exiting when %s loads are aborted",
    async (kind) => {
      const child = fileURLToPath(new URL("./aborted-loads-child.ts", import.meta.url));

      const { stdout } = await promisify(execFile)(process.execPath, ["--import", "tsx", child, random, kind], {
        timeout: 15_000,
      });

      expect(Number(/aborted: (\d+)/.exec(stdout)?.[1])).toBeGreaterThan(0);
    },
  );

  it("says when an aborted load could not give back what it took, which matters more than the abort", async () => {
    const model = await resolve(random);
    const controller = new AbortController();
    const creation = vi.spyOn(LlamaModel.prototype, "createContext").mockImplementationOnce(async () => {
      controller.abort(new Error("no longer wanted"));
      throw controller.signal.reason;
    });
    const disposal = vi.spyOn(LlamaModel.prototype, "dispose").mockRejectedValueOnce(new Error("it hangs on"));

    const starting = startResolved(model, profileOf(model), { signal: controller.signal });

    await expect(starting).rejects.toMatchObject({ code: "dispose_failed", modelId: "test" });
    const [native]: unknown[] = disposal.mock.contexts;
    creation.mockRestore();
    disposal.mockRestore();
    if (native instanceof LlamaModel) await native.dispose();
  });

  it("puts the engine's own reason into the error of a failed load, and gives everything back", async () => {
    const [file] = await makeRandomModel(at("incomplete.gguf"), { omitTensor: "blk.2.ffn_up.weight" });
    const before = await held();
    const model = await resolve(file);

    await expect(startResolved(model, profileOf(model))).rejects.toThrow(/missing tensor 'blk\.2\.ffn_up\.weight'/);
    expect(await held()).toBe(before);
    await expect(start(random)).resolves.toBeDefined();
  });

  it("refuses a file that was cut, replaced or removed after it was checked", async () => {
    const file = at("changing.gguf");
    await copyFile(random, file);
    const model = await resolve(file);

    await truncate(file, 500_000);
    await expect(startResolved(model, profileOf(model))).rejects.toMatchObject({ code: "invalid_model_file", file });
    await writeFile(file, "something else");
    await expect(startResolved(model, profileOf(model))).rejects.toMatchObject({ code: "invalid_model_file" });
    await copyFile(random, file);
    await expect(
      startResolved(await resolve(file), profileOf(model)).then((backing) => backing.dispose()),
    ).resolves.toBeUndefined();
  });

  it("loads a file with NaN weights without harm", async () => {
    const backing = await start(await corruptFile("nan-weights", random, at("nan.gguf")));

    await expect(method(backing, "generate")("hello", { ...GREEDY, maxTokens: 3 }, request())).resolves.toBeDefined();
  });

  it("refuses more threads than all models together may use", async () => {
    const model = await resolve(random);

    await expect(startResolved(model, profileOf(model, { threads: 2 }))).rejects.toMatchObject({
      code: "invalid_option",
      option: "threads",
    });
    await expect(start(random, { threads: 1 })).resolves.toBeDefined();
  });

  it("gives the engine the largest number of threads that a live model asks for", async () => {
    const llama = await sharedEngine({ gpu: "auto", build: "never" });
    const model = await resolve(random);
    const two = await startResolved(model, profileOf(model, { threads: 1 }), { maxThreads: 2 });
    const one = await startResolved(model, profileOf(model), { maxThreads: 1 });

    expect(llama.maxThreads).toBe(2);
    await two.dispose();
    expect(llama.maxThreads).toBe(1);
    await one.dispose();
  });

  it("refuses a model of another backend", async () => {
    const model = await resolve(random);

    await expect(backend.estimate({ ...model }, profileOf(model))).rejects.toThrow(TypeError);
  });
});

describe("detokenize", () => {
  it("is the way back from tokenize, and refuses ids that would abort the process", async () => {
    const backing = await start(random);
    const detokenize = method(backing, "detokenize");
    const ids = await method(backing, "tokenize")("hello world");

    await expect(detokenize(ids)).resolves.toBe("hello world");
    for (const id of [1e6, -1, 0.5, Number.NaN])
      await expect(detokenize([...ids, id])).rejects.toMatchObject({ code: "invalid_option", option: "tokens" });
  });
});

describe("dispose", () => {
  it("frees the memory, resolves `exited`, and is one act however often it is asked for", async () => {
    const before = await held();
    const backing = await start(random);
    expect(await held()).toBeGreaterThan(before);

    const [first, second] = [backing.dispose(), backing.dispose()];

    expect(second).toBe(first);
    await first;
    expect(await held()).toBe(before);
    await expect(backing.exited).resolves.toEqual({ reason: "disposed" });
  });

  it("aborts what is in flight, waits for it, and refuses what comes after", async () => {
    const backing = await start(random, { mode: "server", capabilities: ["generate", "embed"], parallel: 2 });
    const settled: string[] = [];
    const note = (name: string) => (error: unknown) =>
      void settled.push(`${name} ${error instanceof Error && "code" in error ? String(error.code) : "?"}`);
    const generate = () => method(backing, "generate")("hello", LONG, request());
    const running = new Promise<void>((resolve) => {
      void method(backing, "generate")("hello", LONG, request({ onText: () => resolve() })).catch(note("running"));
    });
    const others = [
      generate().catch(note("other")),
      generate().catch(note("queued")),
      method(backing, "embed")(Array<string>(500).fill("hello"), "refuse", request()).catch(note("embed")),
    ];
    await running;

    await backing.dispose();

    await Promise.all(others);
    expect(settled.toSorted()).toEqual([
      "embed request_aborted",
      "other request_aborted",
      "queued request_aborted",
      "running request_aborted",
    ]);
    await expect(generate()).rejects.toMatchObject({ code: "request_aborted", modelId: "test" });
    await expect(method(backing, "tokenize")("x")).rejects.toMatchObject({ code: "request_aborted" });
  });
});

describe("exited", () => {
  it("tells of a crash when the native model is disposed from outside, and every request rejects", async () => {
    const backing = await start(random, { parallel: 1 });
    const generate = (onText = () => undefined as void) =>
      method(backing, "generate")("hello", LONG, request({ onText }));
    const [running, waiting] = [
      generate(() => void (backing.native instanceof LlamaModel && backing.native.dispose())),
      generate(),
    ];

    await expect(running).rejects.toMatchObject({ code: "backing_crashed", modelId: "test", incarnation: 1 });
    await expect(waiting).rejects.toMatchObject({ code: "backing_crashed" });
    await expect(backing.exited).resolves.toMatchObject({ reason: "crashed", cause: expect.any(Error) });
    await expect(generate()).rejects.toMatchObject({ code: "backing_crashed" });
    await expect(backing.dispose()).resolves.toBeUndefined();
  });

  it("tells of a crash while nothing runs", async () => {
    const backing = await start(encoder);
    if (backing.native instanceof LlamaModel) await backing.native.dispose();

    await expect(backing.exited).resolves.toMatchObject({ reason: "crashed" });
  });

  it("takes those down whose weights are the same object, and leaves other models alone", async () => {
    const [one, same, other] = [await start(random), await start(random), await start(encoder)];
    if (one.native instanceof LlamaModel) await one.native.dispose();

    await expect(Promise.all([one.exited, same.exited])).resolves.toMatchObject([
      { reason: "crashed" },
      { reason: "crashed" },
    ]);
    await expect(method(other, "embed")(["hello"], "refuse", request())).resolves.toBeDefined();
    // the next one does not get the disposed object
    await Promise.all([one.dispose(), same.dispose()]);
    const next = await start(random);
    await expect(method(next, "generate")("hello", { ...GREEDY, maxTokens: 3 }, request())).resolves.toBeDefined();
  });
});

describe("a request's signal", () => {
  it("rejects with its reason before, in the queue, in the prompt and in the text; the next request is whole", async () => {
    const backing = await start(random, { parallel: 1, contextSize: 2048 });
    const generate = (prompt: string, signal: AbortSignal, onText = () => undefined as void) =>
      method(backing, "generate")(prompt, { ...LONG, maxTokens: 20 }, request({ signal, onText }));
    const whole = await generate("hello", never);
    const reason = new Error("enough");

    await expect(generate("hello", AbortSignal.abort(reason))).rejects.toBe(reason);
    const inText = new AbortController();
    await expect(generate("hello", inText.signal, () => inText.abort(reason))).rejects.toBe(reason);
    const [inPrompt, inQueue] = [new AbortController(), new AbortController()];
    const call = { ...request({ signal: inPrompt.signal }) };
    const prefilling = method(backing, "generate")("hello world ".repeat(500), LONG, call);
    const queued = generate("hello", inQueue.signal);
    inQueue.abort(reason);
    await expect(queued).rejects.toBe(reason);
    expect(call.phase).not.toBe("decode");
    inPrompt.abort(reason);
    await expect(prefilling).rejects.toBe(reason);

    await expect(generate("hello", never)).resolves.toMatchObject({ text: whole.text });
  });
});
