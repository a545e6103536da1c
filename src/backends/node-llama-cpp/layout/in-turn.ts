/**
 * Times things by turns. The speed of a machine wanders by a tenth and more from one moment to the next, and code gets faster
 * while it runs: only what ran side by side can be compared.
 */

/** Milliseconds of one step of each candidate, in each round. */
export type Rounds = readonly (readonly number[])[];

/** So many rounds, and none is begun after `endsAt`; the first one stops there too once it has two candidates. */
export async function inTurn(
  candidates: readonly (() => Promise<number>)[],
  most: number,
  endsAt: number,
): Promise<Rounds> {
  const rounds: number[][] = [];
  let timed = candidates;
  const isOver = () => performance.now() > endsAt;
  while (rounds.length < most && (rounds.length === 0 || !isOver())) {
    const round: number[] = [];
    for (const time of timed) {
      if (rounds.length === 0 && round.length >= 2 && isOver()) break;
      round.push(await time());
    }
    timed = timed.slice(0, round.length);
    rounds.push(round);
  }
  return rounds;
}

/** How many times as long the candidate at index `of` took as the one at `than`, in the middle of the rounds. */
export function timesAsLong(rounds: Rounds, of: number, than: number): number {
  return median(rounds.map((round) => (round[of] ?? NaN) / (round[than] ?? NaN)));
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return ((sorted[Math.floor(middle)] ?? NaN) + (sorted[Math.ceil(middle)] ?? NaN)) / 2;
}
