import type { LlamaModel, Token } from "node-llama-cpp";
import { beforeAll, describe, expect, it } from "vitest";
import { CallGrammars } from "../../../src/backends/node-llama-cpp/call-grammars.js";
import { PieceCache, TokenText } from "../../../src/backends/node-llama-cpp/text.js";
import type { TurnFormat } from "../../../src/backends/node-llama-cpp/turn-marks.js";
import { TurnReader } from "../../../src/backends/node-llama-cpp/turn-reader.js";
import { makeRandomModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder, withModel } from "../../support/bare-engine.js";

const at = useTemporaryFolder();

/** Marks that are special tokens of the file. */
const format: TurnFormat = {
  thought: { open: "<|im_start|>", close: "<|im_end|>", isOpen: false },
  calls: [{ section: "", prefix: "<s>", paramsPrefix: "(", suffix: ")", between: "", sectionEnd: "" }],
  isParallel: true,
  ends: [],
};
const tools = [
  { name: "look", parameters: { type: "object", properties: { at: { enum: ["sky", "sea"] } } } },
  { name: "now" },
];

beforeAll(async () => {
  await makeRandomModel(at("random.gguf"));
});

function tokenize(model: LlamaModel, text: string): Token[] {
  return model.tokenize(text, true, "trimLeadingSpace");
}

describe("a turn read from tokens", () => {
  it("is told apart by special tokens, which have no text", async () => {
    const parts = await withModel(at("random.gguf"), async (model) => {
      const reader = await TurnReader.make(model, { format, tools, isForced: false }, "r");
      const text = new TokenText(new PieceCache(model), []);
      const tokens = tokenize(model, '<|im_start|>so it<|im_end|> I look.</s>Now<s>look({"at": "sky"})<s>now()');
      return [...tokens.flatMap((token) => reader.read(token, text)), ...reader.end(text, false)];
    });

    const said = (type: string) =>
      parts.map((part) => (part.type === type && "text" in part ? part.text : "")).join("");
    expect(said("reasoning")).toBe("so it");
    expect(said("text")).toBe("I look. Now");
    expect(parts.flatMap((part) => (part.type === "tool-call" ? [part.toolCall] : []))).toEqual([
      { id: "call_r_0", name: "look", arguments: { at: "sky" } },
      { id: "call_r_1", name: "now", arguments: {} },
    ]);
  });

  it("begins a call with what came in one token with its opening, if that begins its arguments", async () => {
    await withModel(at("random.gguf"), async (model) => {
      const grammars = await CallGrammars.make(model, format, { tools, isForced: false });
      const opens = (after: string) => grammars.openCall({ tool: 0, syntax: 0 }, after);

      expect(grammars.state).toBeUndefined();
      expect(opens('{"at": "se')).toBe(true);
      expect(grammars.state).toBeDefined();
      grammars.closeCall();
      expect(["{", "", ' {"at"'].map(opens)).toEqual([true, true, true]);
      grammars.closeCall();
      expect(['{"to', "7", '{"at": "moon'].map(opens)).toEqual([false, false, false]);
      expect(grammars.state).toBeUndefined();
    });
  });
});
