import { FakeBackend } from "../../src/testing/index.js";
import { describeBackendContract } from "./backend-contract.js";

describeBackendContract("the fake", () => ({
  backend: new FakeBackend({
    models: {
      "talker.gguf": { supports: ["generate", "chat"], reply: "one two three four" },
      "embedder.gguf": { supports: ["embed"] },
      "ranker.gguf": { supports: ["rank"] },
    },
  }),
  talker: { source: "talker.gguf", text: "one two three four" },
  embedder: "embedder.gguf",
  ranker: "ranker.gguf",
  missing: "nowhere.gguf",
}));
