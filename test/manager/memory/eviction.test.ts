import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { chooseVictims, type Candidate } from "../../../src/manager/memory/eviction.js";

type Traits = Partial<Omit<Candidate, "modelId">>;

const model = (modelId: string, traits: Traits = {}): Candidate => ({
  modelId,
  incarnation: 1,
  bytes: 1,
  evictionPriority: 0,
  hasSessions: false,
  lastUsedAt: 0,
  ...traits,
});

const bytesOf = (victims: readonly Candidate[]): number => victims.reduce((sum, { bytes }) => sum + bytes, 0);
const freeing =
  (bytes: number) =>
  (victims: readonly Candidate[]): boolean =>
    bytesOf(victims) >= bytes;
const ids = (victims: readonly Candidate[] | undefined): string[] | undefined => victims?.map(({ modelId }) => modelId);

describe("chooseVictims", () => {
  it.each<{ name: string; candidates: Candidate[]; need: number; victims: string[] | undefined }>([
    { name: "nobody if nothing has to go", candidates: [model("a")], need: 0, victims: [] },
    { name: "nobody of nobody if nothing has to go", candidates: [], need: 0, victims: [] },
    { name: "undefined if there is nobody", candidates: [], need: 1, victims: undefined },
    {
      name: "undefined if all together are not enough",
      candidates: [model("a"), model("b")],
      need: 3,
      victims: undefined,
    },
    { name: "all if all are needed", candidates: [model("a"), model("b")], need: 2, victims: ["a", "b"] },

    {
      name: "the higher priority, though it was used last and is larger",
      candidates: [model("low", { bytes: 2 }), model("high", { evictionPriority: 1, bytes: 9, lastUsedAt: 9 })],
      need: 2,
      victims: ["high"],
    },
    {
      name: "two of a higher priority rather than one of a lower",
      candidates: [
        model("low", { bytes: 2 }),
        model("high 1", { evictionPriority: 1 }),
        model("high 2", { evictionPriority: 1 }),
      ],
      need: 2,
      victims: ["high 1", "high 2"],
    },
    {
      name: "priorities below 0 last",
      candidates: [model("kept", { evictionPriority: -1 }), model("plain", { lastUsedAt: 9 })],
      need: 1,
      victims: ["plain"],
    },
    {
      name: "of one priority, a model without sessions, though it was used last and is larger",
      candidates: [model("talking", { hasSessions: true, bytes: 2 }), model("silent", { bytes: 9, lastUsedAt: 9 })],
      need: 2,
      victims: ["silent"],
    },
    {
      name: "the higher priority with sessions before the lower without",
      candidates: [model("low"), model("high", { evictionPriority: 1, hasSessions: true })],
      need: 1,
      victims: ["high"],
    },

    {
      name: "of one rank, one large model rather than two small ones that were used before",
      candidates: [model("small 1"), model("small 2"), model("large", { bytes: 2, lastUsedAt: 9 })],
      need: 2,
      victims: ["large"],
    },
    {
      name: "a small model that suffices rather than a large one that was used before",
      candidates: [model("large", { bytes: 9 }), model("small", { bytes: 2, lastUsedAt: 9 })],
      need: 2,
      victims: ["small"],
    },
    {
      name: "of as many models, those with the fewest bytes",
      candidates: [
        model("a", { bytes: 5 }),
        model("b", { bytes: 4 }),
        model("c", { bytes: 3 }),
        model("d", { bytes: 1 }),
      ],
      need: 6,
      victims: ["a", "d"],
    },
    {
      name: "of the same size, the least recently used",
      candidates: [model("new", { lastUsedAt: 2 }), model("old", { lastUsedAt: 1 })],
      need: 1,
      victims: ["old"],
    },
    {
      name: "of sets of the same size, the one whose most recently used member is the older",
      candidates: [
        model("oldest", { bytes: 1, lastUsedAt: 1 }),
        model("old", { bytes: 2, lastUsedAt: 2 }),
        model("new", { bytes: 2, lastUsedAt: 3 }),
        model("newest", { bytes: 3, lastUsedAt: 4 }),
      ],
      need: 4,
      victims: ["old", "new"],
    },
    {
      name: "of sets that share it, the one whose next member is the older",
      candidates: [
        model("newest", { bytes: 3, lastUsedAt: 9 }),
        model("new", { bytes: 1, lastUsedAt: 2 }),
        model("old", { bytes: 1, lastUsedAt: 1 }),
      ],
      need: 4,
      victims: ["old", "newest"],
    },
    {
      name: "of models that are alike, the first id",
      candidates: [model("b"), model("a"), model("c")],
      need: 1,
      victims: ["a"],
    },

    {
      name: "of a higher rank, nobody who is not needed beside the lower one",
      candidates: [model("low", { bytes: 5 }), model("high", { evictionPriority: 1 })],
      need: 5,
      victims: ["low"],
    },
    {
      name: "of a higher rank, the small model rather than the large one that was used before",
      candidates: [
        model("low", { bytes: 20, lastUsedAt: 9 }),
        model("high and large", { evictionPriority: 1, bytes: 10 }),
        model("high and small", { evictionPriority: 1, bytes: 1, lastUsedAt: 5 }),
      ],
      need: 21,
      victims: ["high and small", "low"],
    },
    {
      name: "of models alike in a higher rank, not the most recently used",
      candidates: [
        model("low", { bytes: 5 }),
        model("high and new", { evictionPriority: 1, lastUsedAt: 2 }),
        model("high and old", { evictionPriority: 1, lastUsedAt: 1 }),
      ],
      need: 6,
      victims: ["high and old", "low"],
    },
    {
      name: "the highest rank rather than the next one, where one of them is needed beside a third",
      candidates: [
        model("low", { bytes: 5 }),
        model("middle", { evictionPriority: 1, lastUsedAt: 1 }),
        model("high", { evictionPriority: 2, lastUsedAt: 2 }),
      ],
      need: 6,
      victims: ["high", "low"],
    },
  ])("chooses $name", ({ candidates, need, victims }) => {
    expect(ids(chooseVictims(candidates, freeing(need)))).toEqual(victims);
  });

  it("takes two that share their weights, if only both together free them", () => {
    const shared = [model("a", { bytes: 1, lastUsedAt: 8 }), model("b", { bytes: 1, lastUsedAt: 9 })];
    const others = [model("c", { bytes: 2 }), model("d", { bytes: 2 }), model("e", { bytes: 2 })];
    const freed = (victims: readonly Candidate[]): number =>
      bytesOf(victims) + (shared.every((one) => victims.includes(one)) ? 4 : 0);

    const victims = chooseVictims([...others, ...shared], (some) => freed(some) >= 6);

    expect(ids(victims)).toEqual(["a", "b"]);
  });

  it("makes room on every pool that lacks it", () => {
    const ram = model("in RAM", { bytes: 9 });
    const gpu = model("on the GPU", { bytes: 1, lastUsedAt: 1 });
    const both = model("on both", { bytes: 11, lastUsedAt: 2 });

    const onBoth = (some: readonly Candidate[]): boolean =>
      some.includes(both) || (some.includes(ram) && some.includes(gpu));

    expect(ids(chooseVictims([ram, gpu], onBoth))).toEqual(["in RAM", "on the GPU"]);
    expect(ids(chooseVictims([ram, gpu, both], onBoth))).toEqual(["on both"]);
  });

  it.each<{ name: string; traits: (index: number) => Traits; need: number; victims: number[] }>([
    {
      name: "the largest",
      traits: (index) => ({ bytes: index, lastUsedAt: index }),
      need: 39 + 38 + 37 + 36,
      victims: [36, 37, 38, 39],
    },
    {
      name: "nobody who is not needed beside the largest",
      traits: (index) => ({ bytes: index < 3 ? 10 : 1 }),
      need: 32,
      victims: [0, 1, 2, 3, 4],
    },
    {
      name: "the least recently used of models alike",
      traits: (index) => ({ lastUsedAt: 40 - index }),
      need: 5,
      victims: [39, 38, 37, 36, 35],
    },
  ])("chooses of more sets than can be tried $name", ({ traits, need, victims }) => {
    const candidates = Array.from({ length: 40 }, (_, index) => model(`${index}`.padStart(2, "0"), traits(index)));

    const chosen = chooseVictims(candidates, freeing(need));

    expect(ids(chosen)?.map(Number)).toEqual(victims);
  });

  it.each<{ name: string; traits: (index: number) => Traits; need: number }>([
    { name: "half of one rank", traits: (index) => ({ bytes: 1 + (index % 7) }), need: 2_000 },
    { name: "all of one rank", traits: () => ({}), need: 1_000 },
    { name: "one of one rank", traits: (index) => ({ bytes: index }), need: 999 },
    { name: "most of 1,000 ranks", traits: (index) => ({ evictionPriority: index }), need: 999 },
    {
      name: "half of 83 ranks",
      traits: (index) => ({ evictionPriority: index % 83, bytes: 1 + (index % 7) }),
      need: 2_000,
    },
    {
      name: "half of a dozen below all others",
      traits: (index) => (index < 12 ? { bytes: 1_000 } : { evictionPriority: 1 }),
      need: 6_500,
    },
    {
      name: "a dozen of 40 below all others",
      traits: (index) => (index < 40 ? { bytes: 1_000 } : { evictionPriority: 1 }),
      need: 12_500,
    },
  ])("asks a few thousand times at most for $name among 1,000", ({ traits, need }) => {
    const candidates = Array.from({ length: 1_000 }, (_, index) => model(`${index}`, traits(index)));
    let asked = 0;

    const victims = chooseVictims(candidates, (some) => {
      asked++;
      return bytesOf(some) >= need;
    });

    expect(bytesOf(victims ?? [])).toBeGreaterThanOrEqual(need);
    expect(bytesOf(victims ?? []) - Math.min(...(victims ?? []).map(({ bytes }) => bytes))).toBeLessThan(need);
    expect(asked).toBeLessThan(5_000);
  });
});

/** A model that shares its weights with the others of its file, and has memory of its own on two pools. */
interface Loaded extends Candidate {
  readonly file: number;
  readonly ram: number;
  readonly gpu: number;
}

const WEIGHTS = [0, 3, 6];

const loaded = fc
  .record({
    evictionPriority: fc.integer({ min: -1, max: 1 }),
    hasSessions: fc.boolean(),
    lastUsedAt: fc.nat(3),
    file: fc.nat(WEIGHTS.length - 1),
    ram: fc.nat(4),
    gpu: fc.nat(2),
  })
  .map((traits) => ({ ...traits, bytes: traits.ram + traits.gpu, incarnation: 1 }));

type Rank = Pick<Candidate, "evictionPriority" | "hasSessions">;

const rankTraits = ({ evictionPriority, hasSessions }: Rank): Rank => ({ evictionPriority, hasSessions });

/** Some models of all ranks or of one, their order turned about, and what has to be free on both pools. */
const situation = (maxLength: number): fc.Arbitrary<Situation> =>
  fc
    .record({ traits: fc.array(loaded, { maxLength }), rank: fc.option(loaded) })
    .map(({ traits, rank }): Loaded[] =>
      traits.map((one, index) => ({ ...one, ...(rank && rankTraits(rank)), modelId: `model ${index}` })),
    )
    .chain((models) =>
      fc.record({
        models: fc.constant(models),
        turned: fc.shuffledSubarray(models, { minLength: models.length }),
        ram: fc.nat(4 * models.length),
        gpu: fc.nat(models.length),
      }),
    );

interface Situation {
  readonly models: readonly Loaded[];
  readonly turned: readonly Loaded[];
  readonly ram: number;
  readonly gpu: number;
}

function enough({ models, ram, gpu }: Situation): (victims: readonly Loaded[]) => boolean {
  return (victims) => {
    const weights = WEIGHTS.reduce((sum, bytes, file) => {
      const users = models.filter((one) => one.file === file);
      return users.length > 0 && users.every((one) => victims.includes(one)) ? sum + bytes : sum;
    }, 0);
    const freed = (pool: "ram" | "gpu"): number => victims.reduce((sum, one) => sum + one[pool], 0);
    return freed("ram") + weights >= ram && freed("gpu") >= gpu;
  };
}

/** The smaller the earlier it goes. */
const rankOf = ({ evictionPriority, hasSessions }: Candidate): number => -2 * evictionPriority + (hasSessions ? 1 : 0);

describe("whatever has to go", () => {
  it("is enough, and is not without any one victim; undefined only if all together are not enough", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(situation(40), (given) => {
        const isEnough = enough(given);

        const victims = chooseVictims(given.models, isEnough);

        if (victims === undefined) {
          expect(isEnough(given.models)).toBe(false);
          return;
        }
        expect(new Set(victims).size).toBe(victims.length);
        expect(isEnough(victims)).toBe(true);
        for (const one of victims) expect(isEnough(victims.filter((other) => other !== one))).toBe(false);
      }),
      { numRuns: 300 },
    );
  });

  it("is never of a lower rank while the higher ones would do alone", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(situation(40), (given) => {
        const isEnough = enough(given);

        const victims = chooseVictims(given.models, isEnough) ?? [];

        const lowest = Math.max(...victims.map(rankOf));
        const higher = given.models.filter((one) => rankOf(one) < lowest);
        expect(victims.length > 0 && isEnough(higher)).toBe(false);
      }),
      { numRuns: 300 },
    );
  });

  it("does not depend on the order of the candidates", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(situation(40), (given) => {
        const isEnough = enough(given);

        expect(chooseVictims(given.turned, isEnough)).toEqual(chooseVictims(given.models, isEnough));
      }),
      { numRuns: 300 },
    );
  });

  it("is of each rank, from the last to the first, the best of all sets that suffice beside the earlier ranks", () => {
    expect.hasAssertions();
    fc.assert(
      fc.property(situation(8), (given) => {
        const isEnough = enough(given);
        fc.pre(isEnough(given.models));

        const victims = chooseVictims(given.models, isEnough) ?? [];

        const byRank = (rank: number, models: readonly Loaded[]): Loaded[] =>
          models.filter((one) => rankOf(one) === rank);
        for (const rank of new Set(given.models.map(rankOf))) {
          const earlier = given.models.filter((one) => rankOf(one) < rank);
          const later = victims.filter((one) => rankOf(one) > rank);
          const sufficient = subsetsOf(byRank(rank, given.models)).filter((some) =>
            isEnough([...earlier, ...some, ...later]),
          );
          const [best] = sufficient.map((some) => meritOf(some, given.models)).toSorted(compareLists);
          expect(meritOf(byRank(rank, victims), given.models)).toEqual(best);
        }
      }),
      { numRuns: 300 },
    );
  });
});

/** What sets are compared by, the most important first; the smaller is the better. */
function meritOf(set: readonly Candidate[], models: readonly Candidate[]): number[] {
  const byUse = models.toSorted((a, b) => a.lastUsedAt - b.lastUsedAt || (a.modelId < b.modelId ? -1 : 1));
  return [set.length, bytesOf(set), ...set.map((one) => byUse.indexOf(one)).toSorted((a, b) => b - a)];
}

function compareLists(a: readonly number[], b: readonly number[]): number {
  const differences = a.map((value, index) => value - (b[index] ?? 0));
  return differences.find((difference) => difference !== 0) ?? 0;
}

function subsetsOf<T>(items: readonly T[]): T[][] {
  return items.reduce<T[][]>((sets, item) => sets.flatMap((set) => [set, [...set, item]]), [[]]);
}
