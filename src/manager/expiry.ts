/** When an idle model is unloaded by its `ttlMs`. Pure. */

export interface Idleness {
  /** Milliseconds; `Infinity`: never. */
  readonly ttlMs: number;
  readonly loadedAt: number;
  /** Of the last release; `undefined` if it was never used. */
  readonly lastUsedAt: number | undefined;
  readonly leases: number;
}

/** Milliseconds since the epoch; `undefined` while it is in use, and for a model that never expires. */
export function expiresAt({ ttlMs, loadedAt, lastUsedAt, leases }: Idleness): number | undefined {
  if (leases > 0 || ttlMs === Number.POSITIVE_INFINITY) return undefined;
  return Math.max(loadedAt, lastUsedAt ?? loadedAt) + ttlMs;
}

/** True from the moment of {@link expiresAt} on, so that a timer set to it finds the model expired. */
export function isExpired(model: Idleness, now: number): boolean {
  const at = expiresAt(model);
  return at !== undefined && now >= at;
}
