import { execFile } from "node:child_process";
import path from "node:path";
import { promisify } from "node:util";
import { describe, expect, it } from "vitest";

const run = promisify(execFile);
const root = path.join(import.meta.dirname, "../..");

describe("npm start", () => {
  it(
    "shows two real models at work, a refusal, a crash, a lazy model and the end, and exits with code 0",
    { timeout: 30_000 },
    async () => {
      // rejects on any other exit code
      const { stdout, stderr } = await run(process.execPath, ["--import", "tsx", "demo/start.ts"], {
        cwd: root,
        timeout: 25_000,
      });

      expect(stderr).toBe("");
      expect(stdout).toMatch(/chat +ready +server +generate, chat/);
      expect(stdout).toMatch(/embed +ready +direct +embed/);
      expect(stdout).toMatch(/insufficient_memory on device "ram": \d/);
      expect(stdout).toContain("chat: error (backing_crashed)");
      expect(stdout).toMatch(/embed: ready, answers with \d+ numbers/);
      expect(stdout).toContain("chat, loaded again: ready");
      expect(stdout).toMatch(/judge: registered\n +judge: ready, says ".+"\n/);
      expect(stdout).toContain("judge, 300 ms after its last use: registered");
      expect(stdout).toMatch(/device ram: 0\.0 MiB reserved/);
      expect(stdout).toMatch(/Done in \d/);
    },
  );
});
