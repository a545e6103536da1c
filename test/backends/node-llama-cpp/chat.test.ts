import { beforeAll, describe, expect, it, onTestFinished } from "vitest";
import type { Backing, ChatSampling, ResolvedModel } from "../../../src/backends/backend.js";
import type { ChatMessage, GenerationPart, ToolCall } from "../../../src/inference.js";
import { makeRandomModel, makeRecitingModel } from "../../../src/testing/gguf/index.js";
import { useTemporaryFolder } from "../../support/bare-engine.js";
import { LLAMA, OPENED, QWEN } from "../../support/chat-templates.js";
import { rejection } from "../../support/test-supervisor.js";
import { GREEDY, method, never, profileOf, request, resolve, startResolved } from "./engine-fixture.js";

const at = useTemporaryFolder();
const weather = {
  name: "get_weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
};
const now = { name: "now" };
const tools = [weather, now];
const asked: ChatMessage[] = [{ role: "user", content: "What is the weather?" }];

const paris = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Größe } \\"x\\"", "days": 3}}\n</tool_call>';
const clock = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>';
const parisCall = { name: "get_weather", arguments: { city: 'Größe } "x"', days: 3 } };
const clockCall = { name: "now", arguments: {} };

/** Each file is made and its format found out once: that takes the library half a second. */
const texts = {
  qwen: `<think>\nI must look.\n</think>\n\nLet me see.\n${paris}\n${clock}`,
  opened: `I must look.\n</think>\n\n${paris}`,
  llama: '{"name": "get_weather", "parameters": {"city": "Rome", "days": 1}}',
  chatml: '||call: get_weather({"city": "Rome", "days": 1})\n||result: sunny',
  hermes: `${paris}\n${clock}`,
  deviant: '<tool_call>\n{"name": "pick", "parameters": {"kind": "b"}}\n</tool_call>',
  prefix: `no <tool_call> {"name": "get_wind", "arguments": {"a": 1}} || call it`,
};
const templates: Partial<Record<keyof typeof texts, string>> = { qwen: QWEN, opened: OPENED, llama: LLAMA };
const models = new Map<string, ResolvedModel>();

beforeAll(async () => {
  for (const [name, text] of Object.entries(texts)) {
    const chatTemplate = new Map(Object.entries(templates)).get(name);
    const [file] = await makeRecitingModel(at(`${name}.gguf`), {
      text,
      ...(chatTemplate !== undefined && { chatTemplate }),
    });
    models.set(name, await resolve(file));
  }
  await makeRandomModel(at("random.gguf"));
  models.set("random", await resolve(at("random.gguf")));
});

async function start(name: keyof typeof texts | "random", contextSize = 1024): Promise<Backing> {
  const model = models.get(name);
  if (model === undefined) throw new Error(`no model ${name}`);
  const backing = await startResolved(model, profileOf(model, { contextSize, parallel: 1 }));
  onTestFinished(() => backing.dispose());
  return backing;
}

async function chat(backing: Backing, sampling: Partial<ChatSampling> = {}, messages = asked) {
  const parts: GenerationPart[] = [];
  const call = { ...request(), onPart: (part: GenerationPart) => void parts.push(part) };
  const completion = await method(backing, "chat")(messages, { ...GREEDY, ...sampling }, call);
  const calls = (completion.toolCalls ?? []).map(({ name, arguments: given }) => ({ name, arguments: given }));
  const said = (type: "text" | "reasoning") => parts.map((part) => (part.type === type ? part.text : "")).join("");
  // whatever else a test looks at: what was streamed is what is given in the end
  expect(said("text")).toBe(completion.text);
  expect(said("reasoning")).toBe(completion.reasoning ?? "");
  expect(parts.flatMap((part) => (part.type === "tool-call" ? [part.toolCall] : []))).toEqual(
    completion.toolCalls ?? [],
  );
  return { ...completion, calls, parts };
}

describe("tool calls", () => {
  it("are told apart from reasoning and text, several in one turn, with every token counted", async () => {
    const backing = await start("qwen");

    const { text, reasoning, calls, finishReason, usage, toolCalls } = await chat(backing, { tools });

    expect({ text, reasoning, calls, finishReason }).toEqual({
      text: "Let me see.",
      reasoning: "I must look.",
      calls: [parisCall, clockCall],
      finishReason: "tool-calls",
    });
    expect(toolCalls?.map(({ id }) => id)).toEqual(["call_request_0", "call_request_1"]);
    const all = await method(backing, "tokenize")(texts.qwen);
    expect(usage.completionTokens).toBeGreaterThan(all.length / 8);
    // the same tokens without anybody looking for calls
    const plain = await method(backing, "generate")("x", GREEDY, request());
    expect(plain.text).toBe(texts.qwen);
    expect(usage.completionTokens).toBe(plain.usage.completionTokens);
  });

  it.each<["llama" | "chatml" | "hermes", object[], string]>([
    ["llama", [{ name: "get_weather", arguments: { city: "Rome", days: 1 } }], ""],
    // what would follow is a result that the model cannot know
    ["chatml", [{ name: "get_weather", arguments: { city: "Rome", days: 1 } }], ""],
    ["hermes", [parisCall, clockCall], ""],
  ])("are found in the syntax of %s", async (name, expected, rest) => {
    const { calls, text, finishReason } = await chat(await start(name), { tools });

    expect({ calls, text, finishReason }).toEqual({ calls: expected, text: rest, finishReason: "tool-calls" });
  });

  it("are text where there are no tools, or none may be called", async () => {
    const backing = await start("hermes");

    for (const options of [{}, { tools, toolChoice: "none" }] as const) {
      const { text, calls, finishReason } = await chat(backing, options);
      expect({ text, calls, finishReason }).toEqual({ text: texts.hermes, calls: [], finishReason: "stop" });
    }
  });

  it("are text where no such tool exists, and what only begins like one is", async () => {
    const { text, calls, finishReason, parts } = await chat(await start("prefix"), { tools });

    expect({ text, calls, finishReason }).toEqual({ text: texts.prefix, calls: [], finishReason: "stop" });
    // the half of a mark is not given out before it is known to be none
    const pieces = parts.flatMap((part) => (part.type === "text" ? [part.text] : []));
    expect(pieces.some((piece) => /^<(tool)?$/.test(piece))).toBe(false);
  });

  it("are whole or not there when maxTokens cuts them, and nothing of their marks is text", async () => {
    const backing = await start("qwen");
    const { usage } = await chat(backing, { tools });
    const seen = new Set<number>();

    for (let maxTokens = 1; maxTokens < usage.completionTokens; maxTokens += 7) {
      const { text, reasoning = "", calls, finishReason, usage: cut } = await chat(backing, { tools, maxTokens });

      expect(finishReason).toBe("length");
      expect(cut.completionTokens).toBe(maxTokens);
      expect("Let me see.".startsWith(text), text).toBe(true);
      expect("I must look.".startsWith(reasoning), reasoning).toBe(true);
      expect([[], [parisCall]]).toContainEqual(calls);
      seen.add(calls.length);
    }
    expect(seen).toEqual(new Set([0, 1]));
  });

  it("obey their schema whatever the model would say, and are made where they are required", async () => {
    const backing = await start("random");

    for (let seed = 1; seed <= 4; seed++) {
      const { calls, text, finishReason } = await chat(backing, {
        tools: [
          {
            name: "pick",
            parameters: { type: "object", properties: { kind: { enum: ["a", "b"] }, ok: { type: "boolean" } } },
          },
          now,
        ],
        toolChoice: { name: "pick" },
        temperature: 1.5,
        seed,
        maxTokens: 200,
      });

      expect(text).toBe("");
      expect(calls[0]).toEqual({
        name: "pick",
        arguments: { kind: expect.stringMatching(/^[ab]$/), ok: expect.any(Boolean) },
      });
      expect(calls.every(({ name }) => name === "pick")).toBe(true);
      expect(["tool-calls", "length"]).toContain(finishReason);
    }
    // the control: by itself the same model calls nothing
    const free = await chat(backing, { tools: [now], temperature: 1.5, seed: 1, maxTokens: 100 });
    expect(free.calls).toEqual([]);
    const required = await chat(backing, {
      tools: [now],
      toolChoice: "required",
      temperature: 1.5,
      seed: 1,
      maxTokens: 100,
    });
    expect(required.calls[0]).toEqual(clockCall);
  });

  it("are held to their format once the name of a tool is said", async () => {
    const pick = { name: "pick", parameters: { type: "object", properties: { kind: { enum: ["a", "b"] } } } };

    const { calls, text } = await chat(await start("deviant"), { tools: [pick], maxTokens: 200 });

    expect(calls[0]).toEqual({ name: "pick", arguments: { kind: expect.stringMatching(/^[ab]$/) } });
    expect(text).not.toContain("pick");
  });

  it("let a forced model finish its thoughts first", async () => {
    const { reasoning, calls } = await chat(await start("opened"), { tools, toolChoice: "required" });

    expect({ reasoning, calls }).toEqual({ reasoning: "I must look.", calls: [parisCall] });
  });

  it.each<[string, unknown, string]>([
    [
      "a keyword without effect",
      { type: "object", properties: { a: { type: "string", pattern: "a" } } },
      "tools.1.parameters",
    ],
    ["another type than an object", { type: "string" }, "tools.1.parameters.type"],
    [
      "too much of everything",
      { type: "object", properties: { a: { type: "array", items: { type: "integer" }, maxItems: 5000 } } },
      "tools.1.parameters",
    ],
  ])("are refused before anything runs if a schema has %s", async (_, parameters, option) => {
    const backing = await start("chatml");
    const call = request();
    const given = [now, { name: "a", parameters: parameters as Record<string, unknown> }];

    const error = await rejection(method(backing, "chat")(asked, { ...GREEDY, tools: given }, call));

    expect(error).toMatchObject({ code: "invalid_option", option });
    expect(call.phase).toBe("load");
  });

  it("end with a stop sequence of the caller's where text has one, but not in reasoning or arguments", async () => {
    const backing = await start("qwen");

    const cut = await chat(backing, { tools, stop: ["me"] });
    const whole = await chat(backing, { tools, stop: ["look", "Größe"] });

    expect(cut).toMatchObject({ text: "Let ", reasoning: "I must look.", calls: [], finishReason: "stop-sequence" });
    expect(whole).toMatchObject({ text: "Let me see.", calls: [parisCall, clockCall], finishReason: "tool-calls" });
  });
});

describe("a conversation with tools", () => {
  const called = (calls: readonly ToolCall[]): ChatMessage => ({ role: "assistant", content: "", toolCalls: calls });

  it.each(["qwen", "llama", "chatml"] as const)(
    "goes on from what its slot holds, in the format of %s",
    async (name) => {
      const backing = await start(name);
      const first = await chat(backing, { tools });
      const messages: ChatMessage[] = [
        ...asked,
        called((first.toolCalls ?? []).slice(0, 1)),
        { role: "tool", toolCallId: "call_request_0", content: '{"sky": "blue"}' },
      ];

      const second = await chat(backing, { tools }, messages);
      const third = await chat(backing, { tools }, [...messages, { role: "assistant", content: "Blue." }, ...asked]);

      expect(second.calls.length).toBeGreaterThan(0);
      // nothing of the system message with the tools, nor of the question, is evaluated again
      expect(second.usage.cachedTokens).toBeGreaterThanOrEqual(first.usage.promptTokens - 8);
      expect(third.usage.cachedTokens).toBeGreaterThanOrEqual(first.usage.promptTokens - 8);
    },
  );
});

describe("reasoning", () => {
  it("is no text, whether the model opens it or the template does", async () => {
    expect(await chat(await start("qwen"))).toMatchObject({ reasoning: "I must look.", calls: [] });
    const opened = await chat(await start("opened"));

    expect(opened).toMatchObject({ reasoning: "I must look.", text: paris, finishReason: "stop" });
  });

  it("is what a cut leaves unfinished", async () => {
    const { text, reasoning, finishReason } = await chat(await start("opened"), { maxTokens: 2 });

    expect({ text, finishReason }).toEqual({ text: "", finishReason: "length" });
    expect(reasoning).toMatch(/^I m?/);
  });

  it("is left out of the prompt by enableThinking: false, and shown to the model again where the format does", async () => {
    const backing = await start("qwen");
    const size = async (sampling: Partial<ChatSampling>, messages = asked) =>
      (await chat(backing, { maxTokens: 1, ...sampling }, messages)).usage.promptTokens;

    // the template writes an empty thought
    expect(await size({ enableThinking: false })).toBeGreaterThan(await size({}));
    expect(await size({ enableThinking: true })).toBe(await size({}));
    const past = (reasoning?: string): ChatMessage[] => [
      ...asked,
      { role: "assistant", content: "Blue.", ...(reasoning !== undefined && { reasoning }) },
      ...asked,
    ];
    expect(await size({}, past("Hm, hm."))).toBeGreaterThan(await size({}, past()));
  });

  it("cannot be asked of a format that has none, nor be left out where the format has no way to", async () => {
    const asks = async (name: "chatml" | "opened", enableThinking: boolean) =>
      chat(await start(name), { enableThinking, maxTokens: 1 });

    expect(await rejection(asks("chatml", true))).toMatchObject({ code: "invalid_option", option: "enableThinking" });
    expect(await rejection(asks("opened", false))).toMatchObject({ code: "invalid_option", option: "enableThinking" });
    // the control: there is nothing to leave out
    expect(await asks("chatml", false)).toMatchObject({ finishReason: "length" });
  });
});

describe("a chat template", () => {
  async function startWith(name: string, chatTemplate: string, text = "hello"): Promise<Backing> {
    const [file] = await makeRecitingModel(at(`${name}.gguf`), { text, chatTemplate });
    const model = await resolve(file);
    const backing = await startResolved(model, profileOf(model, { contextSize: 1024 }));
    onTestFinished(() => backing.dispose());
    return backing;
  }

  it.each([
    ["of bad syntax", "{% for message in messages %}{{ message.content }"],
    ["that leaves the messages out", "{{ 'hello' }}"],
    ["that does not end", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"],
    ["that calls what is not there", "{% for message in messages %}{{ message.content | nothing }}{% endfor %}"],
  ])("%s is an error that names the file, each time, and plain text still goes", async (_, template) => {
    const backing = await startWith("broken", template);

    const error = await rejection(chat(backing));

    expect(error).toMatchObject({ code: "invalid_model_file", file: at("broken.gguf") });
    // found out once
    expect(await rejection(chat(backing))).toBe(error);
    expect((await method(backing, "generate")("x", GREEDY, request())).text).toBe("hello");
  });

  it("that takes it for granted that there are tools is used all the same", async () => {
    const backing = await startWith(
      "granted",
      "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" +
        "{% for message in messages %}{{ '<<' + message.role + '>>' + message.content + '<</>>' }}{% endfor %}",
    );

    const { usage } = await chat(backing, { tools: [now] });

    expect(usage.promptTokens).toBeGreaterThan((await chat(backing)).usage.promptTokens);
  });

  it("that cannot be run is not needed where the library knows the format", async () => {
    const backing = await startWith("known", "{{ nothing() }}<seed:bos><seed:eos><seed:think>");

    const { text } = await chat(backing, { enableThinking: false });

    expect(text).toBe("hello");
  });

  it("of channels gives reasoning and text without their marks, and is refused tools", async () => {
    const said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.";
    const backing = await startWith("channels", "{{ nothing() }}<|start|><|channel|>", said);

    expect(await chat(backing)).toMatchObject({ reasoning: "Hm.", text: "Hello." });
    expect(await rejection(chat(backing, { tools }))).toMatchObject({ code: "invalid_option", option: "tools" });
  });

  it("that refuses a conversation is an error of the messages, with what the template says", async () => {
    const template =
      "{% if messages | length > 6 %}{{ raise_exception('no such words') }}{% endif %}" +
      "{% for message in messages %}{{ '<<' + message.role + '>>' + message.content + '<</>>' }}{% endfor %}";
    const backing = await startWith("strict", template);
    const long = Array.from({ length: 9 }, (_, index): ChatMessage => ({
      role: index % 2 === 0 ? "user" : "assistant",
      content: "x",
    }));

    expect(await rejection(chat(backing, {}, long))).toMatchObject({
      code: "invalid_option",
      option: "messages",
      message: expect.stringContaining("no such words"),
    });
    expect((await chat(backing)).text).toBe("hello");
  });
});

describe("a prompt that does not fit beside maxTokens", () => {
  const lines = Array.from({ length: 8 }, (_, index) => `one two three four five six seven eight ${index}`);
  const long: ChatMessage[] = [
    { role: "system", content: "be good" },
    ...lines.flatMap((content): ChatMessage[] => [
      { role: "user", content },
      { role: "assistant", content: "yes" },
    ]),
    { role: "user", content: "and now" },
  ];

  it("is refused, unless its oldest messages may go: as few as needed, whole, never the system message or the last", async () => {
    const backing = await start("chatml", 160);
    const big = await start("chatml", 1024);
    const size = async (messages: ChatMessage[]) => (await chat(big, { maxTokens: 1 }, messages)).usage.promptTokens;
    const whole = await size(long);
    const kept = [];
    for (let from = 3; from < long.length; from += 2) kept.push(await size([...long.slice(0, 1), ...long.slice(from)]));
    const [third = 0, fourth = 0] = kept.slice(-3);
    const left = async (maxTokens: number) =>
      (await chat(backing, { maxTokens, onOverflow: "truncate-oldest" }, long)).usage;

    expect(await rejection(chat(backing, { maxTokens: 160 - third }, long))).toMatchObject({
      code: "context_length_exceeded",
    });
    // what just fits is kept, and of what does not fit by one token the next exchange goes
    expect(await left(160 - third)).toMatchObject({ promptTokens: third, truncatedTokens: whole - third });
    expect(await left(161 - third)).toMatchObject({ promptTokens: fourth, truncatedTokens: whole - fourth });
    expect(await chat(backing, { maxTokens: 10, onOverflow: "truncate-oldest" })).not.toHaveProperty(
      "usage.truncatedTokens",
    );
    expect(await rejection(chat(backing, { maxTokens: 159, onOverflow: "truncate-oldest" }, long))).toMatchObject({
      code: "context_length_exceeded",
      promptTokens: whole,
    });
  });

  it("loses its oldest tokens but the first, if it is a text", async () => {
    const [backing, big] = [await start("chatml", 64), await start("chatml", 1024)];
    const prompt = lines.join(" ");
    const { promptTokens } = (await method(big, "generate")(prompt, { ...GREEDY, maxTokens: 1 }, request())).usage;
    const generate = (sampling: Partial<ChatSampling>) =>
      method(backing, "generate")(prompt, { ...GREEDY, ...sampling }, request());

    const { usage } = await generate({ maxTokens: 20, onOverflow: "truncate-oldest" });
    const { usage: without } = await generate({ onOverflow: "truncate-oldest" });

    expect(usage).toMatchObject({ promptTokens: 44, truncatedTokens: promptTokens - 44, completionTokens: 20 });
    expect(without).toMatchObject({ promptTokens: 32, truncatedTokens: promptTokens - 32 });
    expect(await rejection(generate({ maxTokens: 64, onOverflow: "truncate-oldest" }))).toMatchObject({
      code: "context_length_exceeded",
    });
  });

  it("is answered until the context is full, if it fits by itself and that is wanted", async () => {
    const backing = await start("hermes", 64);
    const generate = (sampling: Partial<ChatSampling>, prompt = "hello") =>
      method(backing, "generate")(prompt, { ...GREEDY, ...sampling }, request());

    expect(await rejection(generate({ maxTokens: 1000 }))).toMatchObject({ code: "context_length_exceeded" });
    const { finishReason, usage } = await generate({ maxTokens: 1000, onOverflow: "stop" });

    expect(finishReason).toBe("length");
    expect(usage.promptTokens + usage.completionTokens).toBe(64);
    expect(await rejection(generate({ onOverflow: "stop" }, lines.join(" ")))).toMatchObject({
      code: "context_length_exceeded",
    });
  });
});

describe("a chat", () => {
  it("with tools leaves its slot on an abort, in the middle of a call too", async () => {
    const backing = await start("qwen");
    const leaving = new AbortController();
    const parts: string[] = [];
    const call = {
      ...request({ signal: leaving.signal }),
      onPart: (part: GenerationPart) => {
        parts.push(part.type);
        if (part.type === "tool-call") leaving.abort(new Error("enough"));
      },
    };

    const error = await rejection(method(backing, "chat")(asked, { ...GREEDY, tools }, call));

    expect(error).toMatchObject({ message: "enough" });
    expect(parts.filter((type) => type === "tool-call")).toHaveLength(1);
    expect((await chat(backing, { tools })).calls).toEqual([parisCall, clockCall]);
    expect(never.aborted).toBe(false);
  });
});
