import { beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import type { Backing, Sampling } from "../../../src/backends/backend.js";
import { sharedEngine } from "../../../src/backends/node-llama-cpp/engine.js";
import { MAX_GRAMMARS, structureOf } from "../../../src/backends/node-llama-cpp/structured-output.js";
import { makeRandomModel, makeRecitingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { rejection } from "../../support/test-supervisor.js";
import { GREEDY, method, request, start } from "./engine-fixture.js";

const at = useTemporaryFolder();
const SAID = '{"name": "Größe \\"x\\"", "list": [1.5, {"a": true}], "end": null}';
let reciting = "";
let random = "";

beforeAll(async () => {
  [reciting] = await makeRecitingModel(at("reciting.gguf"), { text: SAID });
  [random] = await makeRandomModel(at("random.gguf"));
});

async function generate(backing: Backing, sampling: Partial<Sampling>) {
  const call = request();
  const completion = await method(backing, "generate")("Say it", { ...GREEDY, ...sampling }, call);
  return { ...completion, streamed: call.pieces.join("") };
}

const schema = {
  type: "object",
  properties: {
    kind: { enum: ["alpha", 'be"ta\n', 7, null] },
    ok: { type: "boolean" },
    count: { type: "integer" },
    list: { type: "array", items: { type: "integer" }, minItems: 1, maxItems: 3 },
    name: { type: "string", maxLength: 6 },
    day: { type: "string", format: "date" },
  },
  required: ["kind"],
};
const shape = z.strictObject({
  kind: z.literal(["alpha", 'be"ta\n', 7, null]),
  ok: z.boolean(),
  count: z.number().refine((count) => Number.isInteger(count)),
  list: z
    .array(z.number().refine((count) => Number.isInteger(count)))
    .min(1)
    .max(3),
  name: z.string().refine((name) => Array.from(name).length <= 6),
  day: z.string().regex(/^\d{4}-\d\d-\d\d$/),
});
const JSON_GRAMMAR = String.raw`root ::= "{" [^\x00]* `;

describe("jsonSchema", () => {
  it("makes a model that knows nothing write JSON of that shape, whatever the seed", async () => {
    const backing = await start(random, { contextSize: 1024 });

    for (let seed = 1; seed <= 12; seed++) {
      const { text, finishReason, streamed } = await generate(backing, { jsonSchema: schema, temperature: 1.5, seed });

      expect(finishReason, text).toBe("stop");
      expect(shape.safeParse(JSON.parse(text)).error, text).toBeUndefined();
      expect(streamed).toBe(text);
    }
    // the control: without it the same model writes no JSON
    const { text } = await generate(backing, { temperature: 1.5, seed: 1, maxTokens: 100 });
    expect(() => void JSON.parse(text)).toThrow(SyntaxError);
  });

  it.each([
    ["any of several types", { type: ["boolean", "null"] }, z.union([z.boolean(), z.null()])],
    ["one constant", { const: 'say "x"\\' }, z.literal('say "x"\\')],
    ["one of several schemas", { oneOf: [{ const: 1 }, { type: "boolean" }] }, z.union([z.literal(1), z.boolean()])],
    ["any of several schemas", { anyOf: [{ const: 1 }, { type: "boolean" }] }, z.union([z.literal(1), z.boolean()])],
    [
      "a tuple",
      { type: "array", prefixItems: [{ const: "a" }, { type: "boolean" }], maxItems: 2 },
      z.tuple([z.literal("a"), z.boolean()]),
    ],
    [
      "a schema that uses itself",
      { $ref: "#/$defs/a", $defs: { a: { type: "array", items: { $ref: "#/$defs/a" }, maxItems: 1 } } },
      z.array(z.array(z.unknown()).max(1)).max(1),
    ],
  ])("takes %s, and chats too", async (_what, jsonSchema, expected) => {
    const backing = await start(random);
    const sampling = { ...GREEDY, jsonSchema, temperature: 1, seed: 3 };

    const { text } = await method(backing, "chat")([{ role: "user", content: "hello" }], sampling, request());

    expect(expected.safeParse(JSON.parse(text)).error, text).toBeUndefined();
  });

  it("closes what maxTokens cuts to valid JSON, says length, and streams the closing piece", async () => {
    const backing = await start(reciting);
    const jsonSchema = { type: "object", additionalProperties: true };
    const whole = await generate(backing, { jsonSchema });

    expect(whole).toMatchObject({ text: SAID, streamed: SAID, finishReason: "stop" });
    for (let maxTokens = 1; maxTokens < whole.usage.completionTokens; maxTokens++) {
      const { text, streamed, finishReason, usage } = await generate(backing, { jsonSchema, maxTokens });

      expect(() => void JSON.parse(text), text).not.toThrow();
      expect({ streamed, finishReason, tokens: usage.completionTokens }).toEqual({
        streamed: text,
        finishReason: "length",
        tokens: maxTokens,
      });
    }
  });

  it("closes at the context's end too, and in direct mode", async () => {
    const backing = await start(random, { contextSize: 32, mode: "direct", parallel: 1, capabilities: ["generate"] });
    const jsonSchema = { type: "array", items: { type: "string", minLength: 50 }, minItems: 9 };

    const { text, finishReason } = await generate(backing, { jsonSchema });

    expect(finishReason).toBe("length");
    expect(Array.isArray(JSON.parse(text))).toBe(true);
  });

  it("refuses a bad schema before anything runs, and goes on", async () => {
    const backing = await start(random);
    const leftRecursive = { $ref: "#/$defs/a", $defs: { a: { oneOf: [{ $ref: "#/$defs/a" }, { const: 1 }] } } };

    for (const jsonSchema of [{ type: "string", pattern: "x" }, { type: "thing" }, leftRecursive])
      expect(await rejection(generate(backing, { jsonSchema }))).toMatchObject({
        code: "invalid_option",
        option: "jsonSchema",
      });

    expect((await generate(backing, { jsonSchema: { const: "fine" } })).text).toBe('"fine"');
  });
});

describe("grammar", () => {
  it("allows its texts and no others", async () => {
    const backing = await start(random, { parallel: 4 });
    const grammar = 'root ::= "yes" | "no"';
    const seeds = Array.from({ length: 24 }, (_, seed) => seed);

    const results = await Promise.all(seeds.map((seed) => generate(backing, { grammar, temperature: 1, seed })));

    expect(new Set(results.map(({ text }) => text))).toEqual(new Set(["yes", "no"]));
    expect(new Set(results.map(({ finishReason }) => finishReason))).toEqual(new Set(["stop"]));
    expect(results.every(({ text, streamed }) => text === streamed)).toBe(true);
  });

  it.each([" leading space", "two  spaces , and! marks", "<|im_end|>x", "日本 😀"])(
    "gives %j as it is, in a chat too",
    async (text) => {
      const backing = await start(random);
      const sampling = { ...GREEDY, grammar: `root ::= ${JSON.stringify(text)}` };

      expect((await generate(backing, sampling)).text).toBe(text);
      const chat = method(backing, "chat")([{ role: "user", content: "hello" }], sampling, request());
      expect((await chat).text).toBe(text);
    },
  );

  it("is each request's own, beside others with another and with none", async () => {
    const backing = await start(reciting, { parallel: 3 });

    const results = await Promise.all([
      generate(backing, { grammar: 'root ::= "a"{20}' }),
      generate(backing, {}),
      generate(backing, { grammar: 'root ::= "b"{20}' }),
      generate(backing, { grammar: 'root ::= "a"{20}' }),
    ]);

    expect(results.map(({ text }) => text)).toEqual(["a".repeat(20), SAID, "b".repeat(20), "a".repeat(20)]);
  });

  it("leaves text that it allows as it would be without", async () => {
    const backing = await start(reciting);

    expect((await generate(backing, { grammar: JSON_GRAMMAR, maxTokens: 20 })).text).toBe(
      (await generate(backing, { maxTokens: 20 })).text,
    );
  });

  it("is cut without closing, and stops at a stop sequence", async () => {
    const backing = await start(random);

    expect(await generate(backing, { grammar: 'root ::= "[[[["', maxTokens: 2 })).toMatchObject({
      finishReason: "length",
      text: "[[",
    });
    expect(await generate(backing, { grammar: 'root ::= "abcd"', stop: ["c"] })).toMatchObject({
      finishReason: "stop-sequence",
      text: "ab",
    });
  });

  it.each([
    ["with an undefined rule", "root ::= foo"],
    ["with left recursion", 'root ::= root "a" | "b"'],
    ["without a root", 'foo ::= "a"'],
    ["with an open literal", 'root ::= "abc'],
    ["with an open set", "root ::= [abc"],
    ["of nonsense", "\u{1F600}%$#{}["],
    ["of open parentheses", `root ::= ${"(".repeat(60_000)}`],
    ["of parentheses", `root ::= ${"(".repeat(32_000)}"a"${")".repeat(32_000)}`],
    ["that repeats backwards", 'root ::= "a"{5,2}'],
    ["that repeats more than the engine does", 'root ::= "a"{2001}'],
    ["of white space", " \n"],
    ["with a NUL", 'root ::= "a"\0"b"'],
  ])("%s is refused, and the next request works", async (_what, grammar) => {
    const backing = await start(random);

    expect(await rejection(generate(backing, { grammar }))).toMatchObject({
      code: "invalid_option",
      option: "grammar",
    });
    expect(await rejection(generate(backing, { grammar }))).toMatchObject({
      code: "invalid_option",
      option: "grammar",
    });
    expect((await generate(backing, { grammar: 'root ::= "ok"' })).text).toBe("ok");
  });

  it("that leads where no token goes on fails its own request only", async () => {
    const backing = await start(random, { parallel: 2 });

    const [lost, beside] = await Promise.all([
      rejection(generate(backing, { grammar: String.raw`root ::= "ab" "\UFFFFFFFF"` })),
      generate(backing, { grammar: 'root ::= "c"{20}' }),
    ]);

    expect(lost).toMatchObject({
      code: "invalid_option",
      option: "grammar",
      expected: expect.stringContaining('after "ab"'),
    });
    expect(beside.text).toBe("c".repeat(20));
    expect((await generate(backing, { grammar: 'root ::= "ok"' })).text).toBe("ok");
  });

  it("says what the engine said", async () => {
    const backing = await start(random);

    expect(await rejection(generate(backing, { grammar: 'foo ::= "a"' }))).toMatchObject({
      expected: expect.stringContaining("does not contain a 'root' symbol"),
    });
  });
});

describe("compiled grammars", () => {
  it("are kept, the last ones used", async () => {
    const llama = await sharedEngine({ gpu: "auto", build: "never" });
    const model = await llama.loadModel({ modelPath: random });
    let compiled = 0;
    const create = llama.createGrammar.bind(llama);
    llama.createGrammar = (options) => {
      compiled++;
      return create(options);
    };
    try {
      const ask = (index: number) => structureOf(model, { ...GREEDY, grammar: `root ::= "kept ${index}"` });
      for (let index = 0; index < MAX_GRAMMARS; index++) await ask(index);
      expect(compiled).toBe(MAX_GRAMMARS);
      await ask(0);
      await ask(MAX_GRAMMARS); // the oldest goes: 1, for 0 was asked for again
      await ask(0);
      expect(compiled).toBe(MAX_GRAMMARS + 1);
      await ask(1);
      expect(compiled).toBe(MAX_GRAMMARS + 2);
    } finally {
      llama.createGrammar = create;
      await model.dispose();
    }
  });
});
