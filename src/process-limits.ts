/**
 * What this process may really use: CPUs and RAM. Node's own figures do not know a container's CPU quota (Node 20), and
 * count the page cache of a container as used memory; on Linux the cgroup files say both.
 */
import { readFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";

const CGROUP_ROOT = "/sys/fs/cgroup";

/** CPUs that this process may use at the same time, at least 1; a fraction where a container's quota is one. */
export function allowedCpus(root: string = CGROUP_ROOT): number {
  return Math.max(0.1, Math.min(os.availableParallelism(), cpuQuota(root)));
}

/**
 * The default of `maxThreads`: all allowed CPUs but one, which is left to the event loop; at least 1. llama.cpp's threads
 * spin between the steps of a graph, so one thread more than there are free CPUs costs a factor and not a share
 * (ADR 0007 has the measurements).
 */
export function defaultMaxThreads(cpus: number = allowedCpus()): number {
  return Math.max(1, Math.floor(cpus) - 1);
}

/** RAM that this process may use, and what of it is free. Droppable file pages count as free. */
export function ramLimits(root: string = CGROUP_ROOT): { totalBytes: number; freeBytes: number } {
  const constrained = process.constrainedMemory();
  const machine = os.totalmem();
  let totalBytes = constrained > 0 ? Math.min(machine, constrained) : machine;
  let freeBytes = Math.min(totalBytes, machineFree());
  for (const folder of cgroupFolders(root, "memory")) {
    const limit = readNumber(folder, "memory.max") ?? readNumber(folder, "memory.limit_in_bytes");
    if (limit === undefined || limit >= machine) continue;
    const used = readNumber(folder, "memory.current") ?? readNumber(folder, "memory.usage_in_bytes") ?? 0;
    totalBytes = Math.min(totalBytes, limit);
    freeBytes = Math.min(freeBytes, limit - used + filePages(folder));
  }
  return { totalBytes, freeBytes: Math.max(0, Math.min(totalBytes, freeBytes)) };
}

/** MemAvailable where the system has it: unlike the free pages alone it counts what can be dropped at once. */
function machineFree(): number {
  const available = /^MemAvailable:\s+(\d+) kB$/m.exec(readText("/proc/meminfo") ?? "")?.[1];
  return available === undefined ? os.freemem() : Number(available) * 1024;
}

/** The strictest CPU quota on the way from this process's cgroup to the root. */
function cpuQuota(root: string): number {
  let quota = Infinity;
  for (const folder of cgroupFolders(root, "cpu")) {
    // "max" and -1 mean no quota; neither is a number above 0
    const [limit, period] = readText(path.join(folder, "cpu.max"))?.split(" ").map(Number) ?? [
      readNumber(folder, "cpu.cfs_quota_us"),
      readNumber(folder, "cpu.cfs_period_us"),
    ];
    if (limit !== undefined && period !== undefined && limit > 0 && period > 0) quota = Math.min(quota, limit / period);
  }
  return quota;
}

/**
 * This process's cgroup and all above it, for limits hold on each level: version 2 (one tree) or version 1 (a tree for
 * each controller). In a container the own path often is not visible; then the root of the tree is the container's.
 */
function cgroupFolders(root: string, controller: "cpu" | "memory"): string[] {
  const lines = (readText("/proc/self/cgroup") ?? "").split("\n").map((line) => line.split(":"));
  const ownPath = (match: (controllers: string) => boolean) => lines.find((line) => match(line[1] ?? "-"))?.[2] ?? "/";
  return [
    ...ancestors(
      root,
      ownPath((controllers) => controllers === ""),
    ),
    ...ancestors(
      path.join(root, controller),
      ownPath((controllers) => controllers.split(",").includes(controller)),
    ),
  ];
}

function ancestors(root: string, own: string): string[] {
  const parts = own.split("/").filter((part) => part !== "" && part !== "..");
  return Array.from({ length: parts.length + 1 }, (_, depth) => path.join(root, ...parts.slice(0, depth)));
}

/** File pages that the kernel may drop. */
function filePages(folder: string): number {
  const stat = readText(path.join(folder, "memory.stat")) ?? "";
  return ["inactive_file", "active_file"].reduce(
    (sum, name) => sum + Number(new RegExp(`^${name} (\\d+)$`, "m").exec(stat)?.[1] ?? 0),
    0,
  );
}

function readNumber(folder: string, name: string): number | undefined {
  const value = Number.parseInt(readText(path.join(folder, name)) ?? "", 10);
  return Number.isFinite(value) ? value : undefined;
}

/** `undefined` where the file does not exist or may not be read: then there is no such limit to know of. */
function readText(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}
