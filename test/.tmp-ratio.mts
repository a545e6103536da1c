import { nodeLlamaCpp } from "/work/main/src/backends/node-llama-cpp/index.ts";
import { sharedEngine } from "/work/main/src/backends/node-llama-cpp/engine.ts";
const backend = nodeLlamaCpp();
const S = { maxTokens: 64, temperature: 0, topK: 40, topP: 0.95, minP: 0.05, seed: 1, stop: [], repeatPenalty: 1 };
const med = (a: number[]) => a.sort((x, y) => x - y)[a.length >> 1]!;
const llama = await sharedEngine("auto");
for (const [file, n, rounds] of [["tiny", 1, 15], ["tiny", 8, 15], ["small", 1, 11], ["small", 8, 9], ["small-q4", 8, 9]] as const) {
  const m = await backend.resolve(`/tmp/m/${file}.gguf`, {}, new AbortController().signal);
  const profile = { mode: "server", capabilities: ["generate"], contextSize: 512, parallel: n, maxQueue: 64 } as any;
  const b = await backend.start({ modelId: "m", incarnation: 1, model: m, profile, gpuLayers: 0 }, { signal: new AbortController().signal, maxThreads: 1, onProgress: () => {} });
  const model = await llama.loadModel({ modelPath: `/tmp/m/${file}.gguf`, gpuLayers: 0 });
  const ctx = await model.createContext({ contextSize: 512, sequences: n, batchSize: 512, threads: 1 });
  const seqs = Array.from({ length: n }, () => ctx.getSequence());
  const prompts = Array.from({ length: n }, (_, i) => "hello world the cat " + i);
  const T = Number(process.argv[2] ?? 200);
  const bare = async () => {
    const t0 = performance.now(); let count = 0;
    for (const s of seqs) await s.clearHistory();
    let its = seqs.map((s, i) => ({ it: s.evaluate([model.tokens.bos!, ...model.tokenize(prompts[i]!)], { temperature: 0 }), c: 0 }));
    while (its.length) { const r = await Promise.all(its.map((x) => x.it.next())); its = its.filter((x, i) => { if (r[i]!.done) return false; count++; return ++x.c < T; }); }
    return count / (performance.now() - t0) * 1000;
  };
  const ours = async () => {
    const t0 = performance.now();
    const rs = await Promise.all(prompts.map((p) => b.generate!(p, { ...S, maxTokens: T }, { id: "", signal: new AbortController().signal, phase: "load", onPart: () => {} })));
    return rs.reduce((s, r) => s + r.usage.completionTokens, 0) / (performance.now() - t0) * 1000;
  };
  await bare(); await ours();
  const A: number[] = [], B: number[] = [], R: number[] = [];
  for (let i = 0; i < rounds; i++) { const a = await bare(), o = await ours(); A.push(a); B.push(o); R.push(o / a); }
  console.log(file, "streams", n, "bare", med(A).toFixed(0), "ours", med(B).toFixed(0), "ratio", med(R).toFixed(3));
  await b.dispose(); await model.dispose();
}
