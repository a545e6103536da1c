/** Loads the weights: one model at a time, abortable at any moment. */
import type { Llama, LlamaModel } from "node-llama-cpp";
import type { StartContext, StartSpec } from "../backend.js";
import { checkUnchanged, type GgufModel } from "./gguf-file.js";
import { KV_TYPES } from "./memory-estimate.js";
import { Turns } from "./turns.js";

/** The library loads one model at a time; waiting for that is done here, where an abort ends it at once. */
const loads = new Turns();

/** @throws InvalidModelFileError, SourceUnavailableError, the signal's reason, or the engine's error. */
export async function loadWeights(
  llama: Llama,
  model: GgufModel,
  spec: StartSpec,
  context: StartContext,
): Promise<LlamaModel> {
  const end = await loads.take(context.signal, () => new RangeError("Turns without a limit are never full"));
  try {
    await checkUnchanged(model);
    context.signal.throwIfAborted();
    return await load(llama, model, spec, context);
  } finally {
    end();
  }
}

async function load(
  llama: Llama,
  model: GgufModel,
  spec: StartSpec,
  { signal, onProgress }: StartContext,
): Promise<LlamaModel> {
  const { flashAttention, kvCacheType } = spec.profile;
  // Where it reports progress, the library is told of an abort only once it reads the weights, which is when the first
  // report comes. Told between its preparations and that, it leaves a native callback behind that keeps the process from
  // ever exiting (measured).
  const relay = new AbortController();
  let isReading = onProgress === undefined;
  const forward = () => {
    if (isReading) relay.abort(signal.reason);
  };
  signal.addEventListener("abort", forward, { once: true });
  try {
    const native = await llama.loadModel({
      modelPath: model.files[0].path,
      gpuLayers: spec.gpuLayers,
      loadSignal: relay.signal,
      ...(onProgress && {
        onLoadProgress: (fraction: number) => {
          isReading = true;
          if (signal.aborted) forward();
          else onProgress(fraction);
        },
      }),
      // On the model, because embedding contexts do not take them.
      ...(flashAttention === undefined ? {} : { defaultContextFlashAttention: flashAttention }),
      ...(kvCacheType === undefined
        ? {}
        : {
            experimentalDefaultContextKvCacheKeyType: KV_TYPES[kvCacheType],
            experimentalDefaultContextKvCacheValueType: KV_TYPES[kvCacheType],
          }),
    });
    if (!signal.aborted) return native;
    await native.dispose();
    throw signal.reason;
  } finally {
    signal.removeEventListener("abort", forward);
  }
}
