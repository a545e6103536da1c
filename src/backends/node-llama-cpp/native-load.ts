/** Loads the weights: one model at a time, abortable at any moment. */
import type { Llama, LlamaModel } from "node-llama-cpp";
import type { StartContext, StartSpec } from "../backend.js";
import { InvalidModelFileError } from "../../errors.js";
import { EngineLogError, withEngineLog } from "./engine.js";
import { checkUnchanged, type GgufModel } from "./gguf-file.js";
import { takeLoadTurn } from "./load-turn.js";

/** Lines of llama.cpp that lay a failed load to the file. What else fails, memory above all, may go well the next time. */
const FILE_IS_WRONG =
  /missing tensor|has invalid data|not within the file bounds|wrong (shape|type|array length|number of tensors)|key not found|unknown (model architecture|pre-tokenizer type)|is duplicated|cannot find tokenizer|corrupted|invalid ggml type/;

/** What the engine has found wrong with the file, in its words. */
function fileProblem(lines: readonly string[]): string | undefined {
  return lines.find((line) => FILE_IS_WRONG.test(line));
}

type LoadContext = Pick<StartContext, "signal" | "onProgress">;

/** @throws InvalidModelFileError, SourceUnavailableError, the signal's reason, or the engine's error. */
export async function loadWeights(
  llama: Llama,
  model: GgufModel,
  spec: StartSpec,
  context: LoadContext,
): Promise<LlamaModel> {
  const end = await takeLoadTurn(context.signal);
  const { path } = model.files[0];
  try {
    await checkUnchanged(model);
    context.signal.throwIfAborted();
    const native = await withEngineLog(`Loading "${path}"`, context.signal, () => load(llama, model, spec, context));
    // it may have been replaced between that look and the engine's
    await checkUnchanged(model).catch(async (error: unknown) => {
      await native.dispose();
      throw error;
    });
    return native;
  } catch (error) {
    const problem = error instanceof EngineLogError ? fileProblem(error.lines) : undefined;
    throw problem === undefined ? error : new InvalidModelFileError(path, `the engine says: ${problem}`, error);
  } finally {
    end();
  }
}

async function load(
  llama: Llama,
  model: GgufModel,
  spec: StartSpec,
  { signal, onProgress }: LoadContext,
): Promise<LlamaModel> {
  const { checkTensors = false } = spec.profile;
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
      checkTensors,
      loadSignal: relay.signal,
      ...(onProgress && {
        onLoadProgress: (fraction: number) => {
          isReading = true;
          if (signal.aborted) forward();
          else onProgress(fraction);
        },
      }),
    });
    if (!signal.aborted) return native;
    await native.dispose();
    throw signal.reason;
  } finally {
    signal.removeEventListener("abort", forward);
  }
}
