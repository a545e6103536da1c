import { describe, expect, it } from "vitest";
import { makeRecitingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { makeByteModel } from "../../support/byte-model.js";
import { GREEDY, method, request, start } from "./engine-fixture.js";

const at = useTemporaryFolder();
/** More than native code can stand. */
const LONG = 40_000;

async function talker(pre: string) {
  const file = await makeByteModel(at(`${pre}.gguf`), pre);
  return start(file, { capabilities: ["generate", "chat", "embed"], mode: "server", contextSize: 64 });
}

describe("a text with a long run of one kind", () => {
  it.each(["x", " ", "1", "!", "\n", "é"])("of %j is refused where it would end the process", async (piece) => {
    const backing = await talker("gpt-4o");
    const text = `Hello ${piece.repeat(LONG)}.`;
    const refused = (option: string) => ({
      code: "invalid_option",
      option,
      received: expect.stringContaining("character"),
    });

    const generate = method(backing, "generate");
    const chat = method(backing, "chat");
    await expect(generate(text, GREEDY, request())).rejects.toMatchObject(refused("prompt"));
    await expect(chat([{ role: "user", content: text }], GREEDY, request())).rejects.toMatchObject(refused("messages"));
    await expect(method(backing, "embed")([text], "truncate", request())).rejects.toMatchObject(refused("text"));
    await expect(method(backing, "tokenize")(text)).rejects.toMatchObject(refused("text"));
  });

  it("is taken up to 4096 characters, and a long text of words too", async () => {
    const tokenize = method(await talker("gpt-4o"), "tokenize");

    for (const piece of ["x", " ", "1", "!", "\n"]) expect(await tokenize(piece.repeat(4096))).toHaveLength(4096);
    expect(await tokenize("hello world ".repeat(10_000))).toHaveLength(120_000);
    await expect(tokenize("x".repeat(4097))).rejects.toMatchObject({
      received: expect.stringContaining("4097 from character 0 on"),
    });
  });

  it.each([
    ["bloom", "x1-".repeat(LONG)],
    ["whitespace", "x1-".repeat(LONG)],
    ["exaone-moe", "hello world ".repeat(LONG)],
  ])("is one of several kinds for %s", async (pre, text) => {
    const tokenize = method(await talker(pre), "tokenize");

    await expect(tokenize(text)).rejects.toMatchObject({ code: "invalid_option" });
    expect((await tokenize("hello world, ".repeat(100))).length).toBeGreaterThan(0);
  });

  it("is taken where the engine has code of its own", async () => {
    const tokenize = method(await talker("llama-bpe"), "tokenize");

    expect(await tokenize("x".repeat(LONG))).toHaveLength(LONG);
  });
});

describe("a text that has to be spelled in bytes", () => {
  it("is refused where that would stop the process for minutes, and taken up to 2^17 bytes", async () => {
    const [file] = await makeRecitingModel(at("spelling.gguf"), { text: "yes" });
    const tokenize = method(await start(file), "tokenize");
    const refused = (bytes: number) => ({ option: "text", received: expect.stringContaining(`${bytes} bytes`) });

    await expect(tokenize("\n".repeat(2 ** 20))).rejects.toMatchObject(refused(2 ** 20));
    await expect(tokenize("😀 ".repeat(2 ** 18))).rejects.toMatchObject(refused(2 ** 20));
    await expect(tokenize("\n".repeat(2 ** 17 + 1))).rejects.toMatchObject(refused(2 ** 17 + 1));
    expect(await tokenize("\n".repeat(2 ** 15))).toHaveLength(2 ** 15);
    expect(await tokenize("x".repeat(2 ** 18))).toHaveLength(2 ** 18);
  });
});
