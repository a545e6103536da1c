/** Seeded random numbers that are the same on every machine: only operations whose result IEEE 754 defines exactly. */

/** A source of uniform random numbers in [0, 1). */
export type Random = () => number;

/** Marsaglia's xorshift with a Weyl sequence, mixed once: plenty for weights, and five lines long. */
export function seededRandom(seed: number): Random {
  let weyl = seed >>> 0;
  return () => {
    weyl = (weyl + 0x9e3779b9) >>> 0;
    let word = Math.imul(weyl ^ (weyl >>> 16), 0x21f0aaad);
    word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
    return ((word ^ (word >>> 15)) >>> 0) / 2 ** 32;
  };
}

/**
 * `length` random numbers of mean 0 and the given standard deviation, bell-shaped: each the sum of four uniform ones,
 * since `Math.log` and `Math.cos` may differ in the last bit from one engine to the next.
 */
export function bellShaped(length: number, random: Random, deviation = 1): Float32Array {
  const scale = Math.sqrt(3) * deviation;
  return Float32Array.from({ length }, () => (random() + random() + random() + random() - 2) * scale);
}
