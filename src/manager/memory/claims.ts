/**
 * What is claimed, and what claims take together: weights that several models share count once (ADR 0022). Pure functions of
 * a list of claims: what would be free without some of them is asked with a shorter list.
 */
import type { Device, Placement } from "../../model.js";
import type { SharedPart } from "../../table/entry.js";

/** What is reserved for one life of a model, as the budget needs it. */
export interface Claim {
  /** All that the model needs, also what it shares. */
  readonly placement: Placement;
  /** Bytes of `placement.ram` that the system counts as free. Where something is shared, they are part of that. */
  readonly mappedBytes: number;
  /** The part of `placement` that everyone with this key holds together. */
  readonly shared?: SharedPart | undefined;
  /** False while the bytes are claimed, but not yet allocated. */
  readonly measured: boolean;
}

/** Bytes that are in memory once. */
type Charge = Pick<Claim, "placement" | "mappedBytes" | "measured">;

/**
 * The claims, taken apart: what is each one's own, and what is shared, once for each key. Where the figures of one key
 * differ, as an estimate from a report, the largest counts; one report tells that the bytes are there.
 */
export function chargesOf(claims: readonly Claim[]): readonly Charge[] {
  const shared = new Map<string, Charge>();
  const own = claims.map(({ placement, mappedBytes, measured, shared: part }): Charge => {
    if (part === undefined) return { placement, mappedBytes, measured };
    const known = shared.get(part.key) ?? { placement: {}, mappedBytes: 0, measured: false };
    shared.set(part.key, {
      placement: combine(known.placement, part.placement, Math.max),
      mappedBytes: Math.max(known.mappedBytes, mappedBytes),
      measured: known.measured || measured,
    });
    return { placement: combine(placement, part.placement, (all, some) => all - some), mappedBytes: 0, measured };
  });
  return [...own, ...shared.values()];
}

/** Bytes that these claims take of a pool together. */
export function reservedOn(device: Device, claims: readonly Claim[]): number {
  return chargesOf(claims).reduce((sum, { placement }) => sum + bytesOn(device, placement), 0);
}

/** Bytes of a placement that count against a pool. */
export function bytesOn(device: Device, placement: Placement): number {
  if (device !== "total") return placement[device] ?? 0;
  return Object.values(placement).reduce<number>((sum, bytes) => sum + (bytes ?? 0), 0);
}

export function addPlacements(one: Placement, other: Placement): Placement {
  return combine(one, other, (a, b) => a + b);
}

/** Device by device. No bytes are below zero, so that where `other` has none there is nothing to combine. */
function combine(one: Placement, other: Placement, bytes: (a: number, b: number) => number): Placement {
  const combined = { ...one };
  for (const device of keysOf(other)) combined[device] = bytes(one[device] ?? 0, other[device] ?? 0);
  return combined;
}

function keysOf<T extends object>(record: T): Extract<keyof T, string>[] {
  const keys: Extract<keyof T, string>[] = [];
  for (const key in record) keys.push(key);
  return keys;
}
