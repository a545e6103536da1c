/**
 * The manager in this process against llama.cpp's own server over HTTP, one thread each, and the bare stepped loop beside
 * them, which shows where the time goes: what is lost to that loop is ours, the rest is how the engine was built and what
 * a step of the library costs. Runs where `LLAMA_SERVER` names the server's binary, to be built from the sources that
 * node-llama-cpp brings along:
 *
 * git clone node_modules/node-llama-cpp/llama/gitRelease.bundle …/llama.cpp && cmake -S …/llama.cpp -B …/build \
 *   -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
 *   -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
 * cmake --build …/build --target llama-server
 */
import { BareModel } from "./support/bare-loops.js";
import { HttpServer } from "./support/http-server.js";
import { Managed, roundsOf, shortPrompts, TOKENS } from "./support/managed.js";
import { alternate, median, ratio, speed } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel } from "./support/models.js";

const FILES = ["tiny-f32", "small-f16", "small-q4_0", "large-f16"] as const;
/** Streams, and what is wanted for them. */
const CASES = [
  { streams: 1, least: 0.85 },
  { streams: 8, least: 0.65 },
] as const;

export async function llamaServer(): Promise<Figure[]> {
  const binary = process.env["LLAMA_SERVER"] ?? "";
  if (binary === "") {
    const target = CASES.map(({ streams, least }) => `${streams}: ≥ ${least} ×`).join(", ");
    return [
      {
        figure: "streams against `llama-server`",
        target,
        measured: "skipped: LLAMA_SERVER is not set",
        met: undefined,
      },
    ];
  }
  const figures: Figure[] = [];
  for (const file of FILES) {
    for (const { streams, least } of CASES) {
      const source = await benchModel(file);
      const tokens = file === "large-f16" ? TOKENS / 2 : TOKENS;
      const prompts = shortPrompts(streams);
      await using managed = await Managed.load(source, { maxThreads: 1, parallel: streams });
      await using model = await BareModel.load(source);
      const bare = await model.loops(streams);
      await using server = await HttpServer.start({ binary, file: source, streams });
      const { ours, loop, theirs } = await alternate(roundsOf(file), {
        ours: () => managed.generate(prompts, tokens),
        loop: () => bare.stepped(prompts, tokens),
        theirs: () => server.generate(prompts, tokens),
      });
      const what = `${streams} ${streams === 1 ? "stream" : "streams"}, ${file}`;
      const stepMs = (rates: readonly number[]) => ((1000 * streams) / median(rates)).toFixed(3);
      figures.push(speed(`${what}, against \`llama-server\``, ours, theirs, least), {
        figure: `${what}: where the time goes`,
        target: "stated",
        measured:
          `ours / bare loop ${ratio(ours, loop).toFixed(2)}, bare loop / server ${ratio(loop, theirs).toFixed(2)}; ` +
          `ms per step: ours ${stepMs(ours)}, bare loop ${stepMs(loop)}, server ${stepMs(theirs)}`,
        met: undefined,
      });
    }
  }
  return figures;
}
