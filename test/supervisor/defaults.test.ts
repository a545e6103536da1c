import { afterEach, describe, expect, it, vi } from "vitest";
import type { Logger } from "../../src/api.js";
import { safeLogger } from "../../src/supervisor/defaults.js";

describe("safeLogger", () => {
  afterEach(() => {
    vi.restoreAllMocks();
  });

  it.each<{ name: string; logger: Logger }>([
    {
      name: "throws",
      logger: {
        warn: () => {
          throw new Error("disk full");
        },
      },
    },
    { name: "rejects", logger: { warn: vi.fn().mockRejectedValue(new Error("disk full")) } },
  ])("says what was to be said, and why, as a warning of the process where the logger $name", async ({ logger }) => {
    const warned = new Promise<unknown>((resolve) => vi.spyOn(process, "emitWarning").mockImplementation(resolve));

    safeLogger(logger).warn("The model is gone.");

    await expect(warned).resolves.toMatch(/^The logger threw on: The model is gone\. Error: disk full/);
  });
});
