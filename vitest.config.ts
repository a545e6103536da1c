import { tmpdir } from "node:os";
import path from "node:path";
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    // the engine ends the process when a worker thread that runs it is ended
    pool: "forks",
    testTimeout: 20_000,
    // what is measured in a test is not the user's to find
    env: { XDG_CACHE_HOME: path.join(tmpdir(), `model-supervisor-test-cache-${process.pid}`) },
  },
});
