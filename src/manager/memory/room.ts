/** Whether a load has room, and which idle models would have to go for it. Pure. */
import type { Device, ModelId } from "../../model.js";
import { checkFit, withoutClaims } from "./budget.js";
import type { Pool } from "./budget.js";
import { bytesOn, reservedOn } from "./claims.js";
import type { Claim } from "./claims.js";
import { chooseVictims, type Candidate } from "./eviction.js";

/**
 * What becomes of a claim on memory. `stays`: nobody can take it away. `leaves`: it is being given back. `idle`: it may be
 * evicted. `busy`: it may be evicted once it is idle.
 */
export type Fate = "stays" | "leaves" | "idle" | "busy";

/** What one life of a model has claimed. */
export interface Tenant extends Claim {
  readonly modelId: ModelId;
  readonly incarnation: number;
  readonly fate: Fate;
  /** It has a backing that can be told to take no more requests. */
  readonly isReady: boolean;
  /** Somebody holds it. */
  readonly isInUse: boolean;
  readonly evictionPriority: number;
  readonly lastUsedAt: number;
}

/** What a load wants. */
type Wanted = Pick<Claim, "placement" | "shared">;

/** A load that came earlier and waits for room. */
export interface Ahead extends Wanted {
  readonly evictable: boolean;
  /** The models that have to fall idle for it. */
  readonly waitsFor: readonly Tenant[];
}

export interface RoomInput extends Wanted {
  readonly pools: readonly Pool[];
  readonly tenants: readonly Tenant[];
  readonly ahead: readonly Ahead[];
}

/**
 * `leaving`: it fits when the memory is free that is being given back. `busy`: if models in use fell idle, or those who came
 * before had been served and fallen idle.
 */
export type RoomPlan =
  | { readonly outcome: "fits" }
  | { readonly outcome: "leaving" }
  | { readonly outcome: "evict"; readonly victims: readonly Tenant[] }
  | { readonly outcome: "busy"; readonly victims: readonly Tenant[] }
  | { readonly outcome: "refuse" };

/** Why a load does not fit now. */
export interface Refusal {
  readonly device: Device;
  readonly requiredBytes: number;
  readonly availableBytes: number;
  /** What models hold there that may be evicted, now or when they fall idle, or that are being unloaded. */
  readonly evictableBytes: number;
}

/** More than any two priorities are apart. */
const BEHIND_IDLE = 4e9;

/** `mayEvict`: false where nothing may be unloaded for it. */
export function planRoom(input: RoomInput, mayEvict: boolean): RoomPlan {
  const { pools, tenants, ahead } = input;
  const awaited = ahead.flatMap(({ waitsFor }) => waitsFor);
  // now, and in a way that leaves those who came before the room for which they wait
  const fits = (gone: readonly Tenant[]) =>
    fitsWithout({ ...input, ahead: [] }, gone) && fitsWithout(input, [...gone, ...awaited]);
  if (fits([])) return checkFit(input, pools, tenants).fits ? { outcome: "fits" } : { outcome: "leaving" };
  if (!mayEvict) return { outcome: "refuse" };
  const lacking = pools.filter((pool) => !fitsWithout({ ...input, pools: [pool] }, []));
  const devices = lacking.map(({ device }) => device);
  const idle = tenants.filter(({ fate }) => fate === "idle");
  const victims = victimsOf(idle, devices, fits);
  if (victims !== undefined) return { outcome: "evict", victims };
  const busy = tenants.filter(({ fate }) => fate === "busy");
  const lasting = ahead.filter(({ evictable }) => !evictable);
  if (!fitsWithout({ ...input, ahead: lasting }, [...idle, ...busy])) return { outcome: "refuse" };
  // those that are idle already go first
  const ready = busy
    .filter(({ isReady }) => isReady)
    .map((tenant) => ({ ...tenant, evictionPriority: tenant.evictionPriority - BEHIND_IDLE }));
  const chosen = victimsOf([...idle, ...ready], devices, fits) ?? [];
  return { outcome: "busy", victims: chosen };
}

/** The device that lacks room for what {@link planRoom} refuses, and the figures there. */
export function refusalOf({ pools, tenants, ahead, ...wanted }: RoomInput): Refusal {
  const fit = checkFit(wanted, pools, [...tenants, ...ahead.map(asClaim)]);
  const device = fit.fits ? "total" : fit.device;
  const { requiredBytes, availableBytes } = fit;
  return {
    device,
    requiredBytes,
    availableBytes,
    evictableBytes: evictableOn(device, tenants, ["idle", "busy", "leaves"]),
  };
}

/** What models of these fates hold on a device. */
export function evictableOn(device: Device, tenants: readonly Tenant[], fates: readonly Fate[]): number {
  const others = tenants.filter(({ fate }) => !fates.includes(fate));
  return reservedOn(device, tenants) - reservedOn(device, others);
}

/** The idle models to unload so that no pool is over its limit; all of them, if that is not enough. */
export function victimsOverLimit(pools: readonly Pool[], tenants: readonly Tenant[]): readonly Tenant[] {
  const idle = tenants.filter(({ fate }) => fate === "idle");
  const isOver = ({ device, limitBytes }: Pool, left: readonly Tenant[]) => reservedOn(device, left) > limitBytes;
  const over = pools.filter((pool) => isOver(pool, tenants)).map(({ device }) => device);
  const isWithin = (gone: readonly Tenant[]) => {
    const left = tenants.filter(isLeftWithout(gone));
    return !pools.some((pool) => isOver(pool, left));
  };
  return victimsOf(idle, over, isWithin) ?? idle;
}

/** The idle model that goes first of those that have something on this device. */
export function nextVictim(device: Device, tenants: readonly Tenant[]): readonly Tenant[] | undefined {
  const idle = tenants.filter(({ fate, placement }) => fate === "idle" && bytesOn(device, placement) > 0);
  return victimsOf(idle, [], (some) => some.length > 0);
}

/** Would it fit, beside those who wait already, if these were gone and all that is being given back? */
function fitsWithout({ pools, tenants, ahead, ...wanted }: RoomInput, gone: readonly Tenant[]): boolean {
  const after = withoutClaims(pools, tenants, isLeftWithout(gone));
  return checkFit(wanted, after.pools, [...after.claims, ...ahead.map(asClaim)]).fits;
}

function victimsOf(
  tenants: readonly Tenant[],
  devices: readonly Device[],
  isEnough: (victims: readonly Tenant[]) => boolean,
): readonly Tenant[] | undefined {
  const candidates = tenants.map((tenant) => ({
    ...tenant,
    bytes: devices.reduce((sum, device) => sum + bytesOn(device, tenant.placement), 0),
    hasSessions: false, // no model has any yet
  }));
  return chooseVictims<Tenant & Candidate>(candidates, isEnough);
}

/** A load that waits has claimed what it needs, and allocated nothing of it. */
function asClaim({ placement, shared }: Ahead): Claim {
  return { placement, shared, mappedBytes: 0, measured: false };
}

/** Who is there when these have gone, and all that is being given back. */
function isLeftWithout(gone: readonly Tenant[]): (tenant: Tenant) => boolean {
  const keys = new Set(gone.map(keyOf));
  return (tenant) => tenant.fate !== "leaves" && !keys.has(keyOf(tenant));
}

function keyOf({ modelId, incarnation }: Tenant): string {
  return `${modelId}#${incarnation}`;
}
