import { execFile } from "node:child_process";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import * as surface from "../src/index.js";
import { makeEmbeddingModel, makeRecitingModel } from "../src/testing/index.js";

const run = promisify(execFile);
const root = path.join(import.meta.dirname, "..");
// inside the project, so that the blocks find the same packages
const folder = path.join(root, ".cache", `readme-${process.pid}`);

let readme = "";
let blocks: string[] = [];

beforeAll(async () => {
  readme = await readFile(path.join(root, "README.md"), "utf8");
  blocks = [...readme.matchAll(/```ts\n([^]*?)```/g)].map(([, code = ""]) => code);
  await mkdir(folder, { recursive: true });
});

afterAll(() => rm(folder, { recursive: true, force: true }));

describe("the README", () => {
  it("lists every error code with whether it is retryable, and no other", () => {
    const rows = [...readme.matchAll(/^\| `([a-z_]+)` \| .* \| (yes|no) \|$/gm)].map(
      ([, code, retryable]) => `${code} ${retryable}`,
    );
    // what an error class always says is on its prototype's instances, whatever their arguments
    const codes = Object.values<unknown>(surface).flatMap((value) => {
      if (typeof value !== "function" || !(value.prototype instanceof surface.ModelSupervisorError)) return [];
      const { code, retryable } = instance(value);
      return [`${code} ${retryable ? "yes" : "no"}`];
    });

    expect(rows).toEqual(codes.toSorted());
  });

  it("has examples that compile", async () => {
    for (const [index, block] of blocks.entries()) {
      const prelude = block.includes("await using models")
        ? ""
        : 'import type { ModelManager } from "model-supervisor";\ndeclare const models: ModelManager;\n';
      await writeFile(path.join(folder, `block-${index}.ts`), `${prelude}${block}\nexport {};\n`);
    }
    const paths = {
      "model-supervisor": ["../../src/index.ts"],
      "model-supervisor/metrics": ["../../src/metrics/index.ts"],
      "model-supervisor/testing": ["../../src/testing/index.ts"],
    };
    const config = {
      extends: "../../tsconfig.json",
      compilerOptions: { paths, noUnusedLocals: false },
      include: ["*.ts"],
    };
    await writeFile(path.join(folder, "tsconfig.json"), JSON.stringify(config));

    // on errors the compiler's exit code makes the promise reject, with what it said
    const compiler = run(process.execPath, [path.join(root, "node_modules/typescript/bin/tsc"), "-p", folder]);
    const { stdout } = await compiler.catch((error: { stdout: string }) => error);

    expect(stdout).toBe("");
    expect(blocks.length).toBeGreaterThanOrEqual(3);
  });

  it("has a first example that runs as it is on real files and exits by itself", async () => {
    const chat = path.join(folder, "chat.gguf");
    const embed = path.join(folder, "embed.gguf");
    await makeRecitingModel(chat, { text: "there was a model that never lied." });
    await makeEmbeddingModel(embed);

    const { stdout } = await runBlock(0, { "./qwen3-0.6b-q8_0.gguf": chat, "./nomic-embed.gguf": embed });

    expect(stdout).toBe("there was a model that never lied.");
  });

  it("has an example with a tool that runs as it is, in two turns", async () => {
    const chat = path.join(folder, "tools.gguf");
    const call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>';
    await makeRecitingModel(chat, { text: `I look. ${call}` });
    const index = blocks.findIndex((block) => block.includes("get_weather"));

    const { stdout } = await runBlock(index, { "./qwen3-0.6b-q8_0.gguf": chat });

    expect(stdout).toBe("I look.");
  });

  it("has an example for tests that runs as it is", async () => {
    const index = blocks.findIndex((block) => block.includes("FakeBackend"));

    expect(await runBlock(index, {})).toMatchObject({ stdout: "", stderr: "" });
  });
});

async function runBlock(index: number, sources: Record<string, string>): Promise<{ stdout: string; stderr: string }> {
  let code = blocks[index] ?? "";
  for (const [written, real] of Object.entries(sources)) code = code.replaceAll(written, real);
  code = code
    .replaceAll('"model-supervisor"', JSON.stringify(path.join(root, "src/index.ts")))
    .replaceAll('"model-supervisor/testing"', JSON.stringify(path.join(root, "src/testing/index.ts")));
  const file = path.join(folder, `run-${index}.mts`);
  await writeFile(file, code);
  return run(process.execPath, ["--import", "tsx", file], { cwd: root, timeout: 20_000 });
}

/** An error with whatever arguments: enough to read what is the same for all of its class. */
function instance(Class: Function): surface.ModelSupervisorError {
  const anything = new Proxy({}, { get: (_target, key) => (key === Symbol.toPrimitive ? () => "x" : []) });
  return Reflect.construct(Class, [anything, "registered", anything, []]);
}
