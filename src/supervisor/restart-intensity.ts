/** How often the parts of the tree may fail: at most `max` restarts within `periodMs`. Pure. */
const RESTART_LIMIT = { max: 3, periodMs: 5_000 } as const;

/** Adds a restart now; `undefined` if that would be one too many. Earlier ones than the period are forgotten. */
export function recordRestart(restarts: readonly number[], now: number): readonly number[] | undefined {
  const recent = recentRestarts(restarts, now);
  return recent.length >= RESTART_LIMIT.max ? undefined : [...recent, now];
}

export function recentRestarts(restarts: readonly number[], now: number): readonly number[] {
  return restarts.filter((at) => now - at < RESTART_LIMIT.periodMs);
}
