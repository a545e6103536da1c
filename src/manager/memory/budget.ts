/**
 * What the models may hold: the budget as the caller wrote it, against the devices of the machine, against what is
 * reserved. Pure: the devices and reservations come in as data.
 */
import type { Device, DeviceInfo, MemoryBudget, Placement, Size } from "../../model.js";
import { parseSize } from "./size.js";

/** Share of the RAM that `"auto"` lets models have; the rest is for the application and the system. */
const AUTO_RAM_SHARE = 0.8;
/** Up to this much memory `"edge"` keeps no model locally. */
const EDGE_MINIMUM_BYTES = 2 * 1024 ** 3;

/** What is reserved, as the budget needs it. */
export interface Claim {
  readonly placement: Placement;
  /** Bytes of `placement.ram` that the system counts as free. */
  readonly mappedBytes: number;
  /** False while the bytes are claimed, but not yet allocated. */
  readonly measured: boolean;
}

/** One pool of the budget. */
export interface Pool {
  readonly device: Device;
  /** `Infinity` = unlimited. */
  readonly limitBytes: number;
  /** What is really free now; set where the limit itself follows the machine (`"auto"`). */
  readonly freeBytes: number | undefined;
}

/** The pools of a budget, in the order in which a refusal names them. */
export function resolveBudget(budget: MemoryBudget, devices: readonly DeviceInfo[]): readonly Pool[] {
  const ram = devices.find((device) => device.device === "ram");
  if (budget === "edge")
    return [totalPool((ram?.totalBytes ?? 0) <= EDGE_MINIMUM_BYTES ? 0 : (ram?.totalBytes ?? 0) / 2)];
  if (typeof budget === "number") return [totalPool(budget)];
  if (typeof budget === "string" && budget !== "auto" && budget !== "unlimited") return [totalPool(bytesOf(budget))];
  const map = typeof budget === "object" ? budget : { ram: budget, gpu: budget };
  const gpus = separateGpus(devices);
  return [
    pool("ram", map.ram ?? "auto", ram, AUTO_RAM_SHARE),
    ...gpus.map((gpu) => pool(gpu.device, gpuBudget(map.gpu, gpuIndex(gpu)), gpu, 1)),
  ];
}

/** GPUs with memory of their own. One that shares the RAM is counted there. */
export function separateGpus(devices: readonly DeviceInfo[]): readonly DeviceInfo[] {
  return devices.filter((device) => device.device !== "ram" && !device.unified);
}

/** The number in `gpu:1`, which is what options and lists count by. */
export function gpuIndex({ device }: DeviceInfo): number {
  return Number(device.slice("gpu:".length));
}

function totalPool(limitBytes: number): Pool {
  return { device: "total", limitBytes: Math.floor(limitBytes), freeBytes: undefined };
}

/** A GPU that the map does not list may hold nothing: its place in a list is its index. */
function gpuBudget(gpu: GpuBudget, index: number): Size | "auto" | "unlimited" {
  if (gpu === undefined) return 0;
  return typeof gpu === "string" ? gpu : (gpu[index] ?? 0);
}
type GpuBudget = "auto" | "unlimited" | readonly (Size | "unlimited")[] | undefined;

function pool(
  device: Device,
  limit: Size | "auto" | "unlimited",
  info: DeviceInfo | undefined,
  autoShare: number,
): Pool {
  if (limit === "unlimited") return { device, limitBytes: Infinity, freeBytes: undefined };
  if (limit === "auto") {
    return { device, limitBytes: Math.floor((info?.totalBytes ?? 0) * autoShare), freeBytes: info?.freeBytes ?? 0 };
  }
  return { device, limitBytes: bytesOf(limit), freeBytes: undefined };
}

/** Sizes are checked where they come in; one that is none here can only be a bug, and then nothing may be loaded. */
function bytesOf(size: Size): number {
  return parseSize(size) ?? 0;
}

/** Bytes of a placement that count against a pool. */
export function bytesOn(device: Device, placement: Placement): number {
  if (device !== "total") return placement[device] ?? 0;
  return Object.values(placement).reduce<number>((sum, bytes) => sum + (bytes ?? 0), 0);
}

/** What claims hold on a device together. */
export function heldOn(device: Device, claims: readonly Claim[]): number {
  return claims.reduce((sum, claim) => sum + bytesOn(device, claim.placement), 0);
}

/** The part of it that the system counts as free: claims of loads under way, and file mappings. */
function countedAsFreeOn(device: Device, claims: readonly Claim[]): number {
  return claims.reduce((sum, claim) => {
    if (!claim.measured) return sum + bytesOn(device, claim.placement);
    return device === "ram" ? sum + claim.mappedBytes : sum;
  }, 0);
}

/** How it will be when only these claims are left: what the others have allocated is free then. */
export function withoutClaims<C extends Claim>(
  pools: readonly Pool[],
  claims: readonly C[],
  isLeft: (claim: C) => boolean,
): { readonly pools: readonly Pool[]; readonly claims: readonly C[] } {
  const left = claims.filter(isLeft);
  const allocated = (device: Device, these: readonly Claim[]) => heldOn(device, these) - countedAsFreeOn(device, these);
  return {
    claims: left,
    pools: pools.map((pool) =>
      pool.freeBytes === undefined
        ? pool
        : { ...pool, freeBytes: pool.freeBytes + allocated(pool.device, claims) - allocated(pool.device, left) },
    ),
  };
}

/**
 * What a load could claim on a pool now: `min(limit − reserved, free − what is reserved, but still counted as free)`.
 * Still counted as free are claims of loads under way and file mappings; other residents are not counted twice.
 */
export function availableOn(pool: Pool, claims: readonly Claim[]): number {
  const underLimit = pool.limitBytes - heldOn(pool.device, claims);
  if (pool.freeBytes === undefined) return Math.max(0, underLimit);
  return Math.max(0, Math.min(underLimit, pool.freeBytes - countedAsFreeOn(pool.device, claims)));
}

/** The outcome of checking a placement against the budget. */
export type Fit =
  | { readonly fits: true; readonly requiredBytes: number; readonly availableBytes: number }
  | { readonly fits: false; readonly device: Device; readonly requiredBytes: number; readonly availableBytes: number };

/** Checks a placement; the refusal names the first pool that does not fit. */
export function checkFit(placement: Placement, pools: readonly Pool[], claims: readonly Claim[]): Fit {
  let tightest = Infinity;
  for (const pool of pools) {
    const requiredBytes = bytesOn(pool.device, placement);
    if (requiredBytes === 0) continue;
    const availableBytes = availableOn(pool, claims);
    // so written, a figure that is no number refuses
    if (!(requiredBytes <= availableBytes)) return { fits: false, device: pool.device, requiredBytes, availableBytes };
    tightest = Math.min(tightest, availableBytes);
  }
  return { fits: true, requiredBytes: bytesOn("total", placement), availableBytes: tightest };
}

/** JSON has no `Infinity`. */
export function finiteOrNull(bytes: number): number | null {
  return Number.isFinite(bytes) ? bytes : null;
}
