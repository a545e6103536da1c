import { describe, expect, it } from "vitest";
import * as surface from "../src/index.js";
import * as metrics from "../src/metrics/index.js";
import * as testing from "../src/testing/index.js";

/** What can be imported is a promise: a name that appears or goes must be meant. */
describe("the public surface", () => {
  it("of model-supervisor is exactly this", () => {
    expect(Object.keys(surface).toSorted()).toEqual([
      "AlreadyLoadedError",
      "AlreadyStartedError",
      "BackingCrashedError",
      "ClosedError",
      "ContextLengthExceededError",
      "DEFAULT_MODEL",
      "DisposeFailedError",
      "EstimateFailedError",
      "InsufficientMemoryError",
      "InvalidModelFileError",
      "InvalidOptionError",
      "LeaseReleasedError",
      "LoadCancelledError",
      "LoadFailedError",
      "ModelSupervisor",
      "ModelSupervisorError",
      "NoDefaultModelError",
      "NotLoadedError",
      "NotReadyError",
      "NotStartedError",
      "QueueFullError",
      "RequestAbortedError",
      "RequestFailedError",
      "RequestTimeoutError",
      "SourceUnavailableError",
      "StorageFullError",
      "SupervisorExhaustedError",
      "UnloadTimeoutError",
      "UnsupportedCapabilityError",
      "isModelSupervisorError",
      "nodeLlamaCpp",
    ]);
  });

  it("of model-supervisor/metrics is exactly this", () => {
    expect(Object.keys(metrics)).toEqual(["collectMetrics"]);
  });

  it("of model-supervisor/testing is exactly this", () => {
    expect(Object.keys(testing).toSorted()).toEqual([
      "FakeBackend",
      "Gate",
      "SimulatedClock",
      "corruptFile",
      "corruptions",
      "embeddingModelPresets",
      "makeEmbeddingModel",
      "makeRandomModel",
      "makeRankingModel",
      "makeRecallModel",
      "makeRecitingModel",
      "randomModelPresets",
      "recallKeys",
    ]);
  });
});
