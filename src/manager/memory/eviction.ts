/** Which idle models have to go so that there is room. Pure. */
import type { ModelId } from "../../model.js";

export interface Candidate {
  readonly modelId: ModelId;
  readonly incarnation: number;
  /** What it frees on the pools that lack room. */
  readonly bytes: number;
  /** Higher goes first. */
  readonly evictionPriority: number;
  /** Models without go first. */
  readonly hasSessions: boolean;
  /** The least recently used goes first. Milliseconds since the epoch. */
  readonly lastUsedAt: number;
}

/**
 * So many sets of one rank are tried: all that there are of eight models. Where there are more, a set is exact as long
 * as it is small (one model of 256, two of 22), and otherwise greedy: never more than needed, maybe not the fewest. The
 * event loop stands still meanwhile, and each try looks at all models.
 */
const MAX_TRIES = 2 ** 8;

/**
 * The victims to be unloaded so that `isEnough`, in the order in which they go; `undefined` if all of them together are
 * not. `[]` if nothing has to go. Without any one of the victims it would not be enough.
 *
 * A rank is the models of one `evictionPriority`, with or without sessions. As few ranks are touched as can be. Of each,
 * from the last touched to the first, the smallest set goes that suffices beside the ranks before it: the fewest models,
 * then the fewest bytes, then the least recently used (of two sets the most recently used members are compared, then the
 * next).
 *
 * @param isEnough Monotone: more victims never free less. Not taken as additive: two models that share their weights
 * free more together than one by one. The order of what it is given has no meaning.
 */
export function chooseVictims<C extends Candidate>(
  candidates: readonly C[],
  isEnough: (victims: readonly C[]) => boolean,
): readonly C[] | undefined {
  if (!isEnough(candidates)) return undefined;
  const ranks = ranksOf(candidates);
  let before: readonly C[] = ranks.flat();
  let victims: readonly C[] = [];
  // a rank that is not needed beside the ones before it has an empty smallest set
  for (const rank of ranks.toReversed()) {
    const earlier = before.slice(0, -rank.length);
    const later = victims;
    victims = smallestOf(rank, (some) => isEnough(earlier.concat(some, later))).concat(later);
    before = earlier;
  }
  return victims;
}

/** The ranks in the order in which they go; in each the least recently used first. */
function ranksOf<C extends Candidate>(candidates: readonly C[]): C[][] {
  const ranks: C[][] = [];
  for (const candidate of candidates.toSorted((a, b) => compareRank(a, b) || compareUse(a, b))) {
    const [first] = ranks.at(-1) ?? [];
    if (first !== undefined && compareRank(first, candidate) === 0) ranks.at(-1)?.push(candidate);
    else ranks.push([candidate]);
  }
  return ranks;
}

function compareRank(a: Candidate, b: Candidate): number {
  return compare(b.evictionPriority, a.evictionPriority) || Number(a.hasSessions) - Number(b.hasSessions);
}

/** Never 0 for two models, so that the order of the input has no meaning. */
function compareUse(a: Candidate, b: Candidate): number {
  return compare(a.lastUsedAt, b.lastUsedAt) || compare(a.modelId, b.modelId);
}

function compare<T extends number | string>(a: T, b: T): number {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}

/** The smallest set of a rank that suffices; all of them together do. In the order of the rank. */
function smallestOf<C extends Candidate>(rank: readonly C[], suffices: (some: readonly C[]) => boolean): readonly C[] {
  // whoever cannot be spared is in every set that suffices; mostly that is the answer already
  const needed = rank.filter((_, index) => !suffices(rank.toSpliced(index, 1)));
  if (needed.length === rank.length || suffices(needed)) return needed;

  const spare = rank.filter((one) => !needed.includes(one));
  const completes = (some: readonly C[]): boolean => suffices(needed.concat(some));
  const chosen = new Set([...needed, ...(fewestOf(spare, completes) ?? greedilyOf(spare, completes))]);
  return rank.filter((one) => chosen.has(one));
}

/** Tries all sets, small ones first, the least recently used first; `undefined` if there are too many. */
function fewestOf<C extends Candidate>(
  spare: readonly C[],
  completes: (some: readonly C[]) => boolean,
): readonly C[] | undefined {
  let tries = 0;
  let sets = 1;
  for (let size = 1; size < spare.length; size++) {
    sets = (sets * (spare.length - size + 1)) / size;
    tries += sets;
    if (tries > MAX_TRIES) return undefined;
    let best: readonly C[] | undefined;
    for (const set of setsOf(spare, size)) {
      if ((best === undefined || bytesOf(set) < bytesOf(best)) && completes(set)) best = set;
    }
    if (best !== undefined) return best;
  }
  return undefined;
}

/** Drops whoever is not needed, the smallest first: the larger those that stay, the fewer they are. */
function greedilyOf<C extends Candidate>(
  spare: readonly C[],
  completes: (some: readonly C[]) => boolean,
): readonly C[] {
  let kept: readonly C[] = spare.toSorted((a, b) => compare(b.bytes, a.bytes));
  for (let index = kept.length - 1; index >= 0; index--) {
    const fewer = kept.toSpliced(index, 1);
    if (completes(fewer)) kept = fewer;
  }
  return kept;
}

/** All sets of a size. Of two, the one comes first whose last members, in which they differ, come first in `items`. */
function* setsOf<C>(items: readonly C[], size: number): Generator<readonly C[]> {
  if (size === 0) {
    yield [];
    return;
  }
  for (const [index, last] of items.entries()) {
    for (const others of setsOf(items.slice(0, index), size - 1)) yield [...others, last];
  }
}

function bytesOf(set: readonly Candidate[]): number {
  return set.reduce((sum, { bytes }) => sum + bytes, 0);
}
