import { mkdirSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { allowedCpus, defaultMaxThreads, ramLimits } from "../src/process-limits.js";
import { useTemporaryFolder } from "./support/bare-engine.js";

const folder = useTemporaryFolder();
let count = 0;

/** A pretended cgroup tree; the own group is the root of it, as it looks in a container. */
function cgroup(files: Record<string, string>): string {
  const root = folder(`cgroup-${++count}`);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(root, name)), { recursive: true });
    writeFileSync(path.join(root, name), text);
  }
  return root;
}

const none = () => cgroup({ "cgroup.procs": "" });
const MIB = 1024 ** 2;

describe("allowedCpus", () => {
  it("is what the machine offers where there is no quota", () => {
    expect(allowedCpus(none())).toBe(os.availableParallelism());
    expect(allowedCpus(cgroup({ "cpu.max": "max 100000\n" }))).toBe(os.availableParallelism());
    expect(allowedCpus(cgroup({ "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n" }))).toBe(
      os.availableParallelism(),
    );
  });

  it.each([
    ["version 2", { "cpu.max": "50000 100000\n" }],
    ["version 1", { "cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n" }],
  ])("follows the CPU quota of a cgroup, %s", (_, files) => {
    expect(allowedCpus(cgroup(files))).toBe(0.5);
  });
});

describe("defaultMaxThreads", () => {
  it.each([
    [0.5, 1],
    [1, 1],
    [1.9, 1],
    [2, 1],
    [3.5, 2],
    [16, 15],
  ])("of %d CPUs is %d: one is left to the event loop, and at least one is used", (cpus, threads) => {
    expect(defaultMaxThreads(cpus)).toBe(threads);
  });
});

describe("ramLimits", () => {
  it("are the machine's where there is no limit", () => {
    const { totalBytes, freeBytes } = ramLimits(none());

    expect(totalBytes).toBeLessThanOrEqual(os.totalmem());
    expect(totalBytes).toBeGreaterThan(os.totalmem() / 2);
    expect(freeBytes).toBeGreaterThan(0);
    expect(freeBytes).toBeLessThanOrEqual(totalBytes);
  });

  it.each([
    [
      "version 2",
      {
        "memory.max": `${512 * MIB}\n`,
        "memory.current": `${200 * MIB}\n`,
        "memory.stat": `anon 1\ninactive_file ${40 * MIB}\nactive_file ${10 * MIB}\n`,
      },
    ],
    [
      "version 1",
      {
        "memory/memory.limit_in_bytes": `${512 * MIB}\n`,
        "memory/memory.usage_in_bytes": `${200 * MIB}\n`,
        "memory/memory.stat": `inactive_file ${40 * MIB}\nactive_file ${10 * MIB}\n`,
      },
    ],
  ])("follow a cgroup's limit; file pages that can be dropped count as free, %s", (_, files) => {
    expect(ramLimits(cgroup(files))).toEqual({ totalBytes: 512 * MIB, freeBytes: 362 * MIB });
  });

  it("are never below zero", () => {
    const root = cgroup({ "memory.max": `${10 * MIB}\n`, "memory.current": `${20 * MIB}\n` });

    expect(ramLimits(root)).toEqual({ totalBytes: 10 * MIB, freeBytes: 0 });
  });

  it("ignore a limit beyond the machine, which is how version 1 says that there is none", () => {
    expect(ramLimits(cgroup({ "memory/memory.limit_in_bytes": "9223372036854771712\n" })).totalBytes).toBeGreaterThan(
      os.totalmem() / 2,
    );
  });
});
