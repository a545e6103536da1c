import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    // the engine ends the process when a worker thread that runs it is ended
    pool: "forks",
    testTimeout: 20_000,
  },
});
