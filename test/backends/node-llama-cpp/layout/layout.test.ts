import { describe, expect, it } from "vitest";
import {
  candidateSpreads,
  candidateWidths,
  chooseSpread,
  measuringMs,
  slotsOf,
  type SpreadRates,
} from "../../../../src/backends/node-llama-cpp/layout/layout.js";

const cpu = (slots: number, threads: number, sizeBytes = 2 ** 30) =>
  candidateSpreads({ slots, threads, isFixed: false, sizeBytes });
const spread = (contexts: number, threads: number) => ({ contexts, threads });

describe("candidateSpreads", () => {
  it("leaves no choice with one thread, or where the threads are set", () => {
    expect(cpu(8, 1)).toEqual([spread(1, 1)]);
    expect(candidateSpreads({ slots: 8, threads: 6, isFixed: true, sizeBytes: 0 })).toEqual([spread(1, 6)]);
  });

  it("begins with one thread for a small model", () => {
    expect(cpu(8, 2, 1e6)).toEqual([spread(1, 1), spread(1, 2), spread(2, 1)]);
  });

  it("begins with one context of all threads, then fewer threads, then more contexts", () => {
    expect(cpu(8, 2)).toEqual([spread(1, 2), spread(1, 1), spread(2, 1)]);
    expect(cpu(8, 8)).toEqual([spread(1, 8), spread(1, 1), spread(2, 1), spread(2, 4), spread(4, 1), spread(4, 2)]);
  });

  it("has no more contexts than slots, and never more threads than the model may use", () => {
    expect(cpu(1, 4)).toEqual([spread(1, 4), spread(1, 1)]);
    for (const { contexts, threads } of cpu(16, 7)) expect(contexts * threads).toBeLessThanOrEqual(7);
  });
});

describe("candidateWidths", () => {
  it("leaves no choice up to four slots", () => {
    expect([1, 2, 4].map(candidateWidths)).toEqual([[1], [2], [4]]);
  });

  it("tries all slots first, then halves, then what lies between", () => {
    expect(candidateWidths(8)).toEqual([8, 4, 6, 7]);
    expect(candidateWidths(16)).toEqual([16, 8, 4, 12, 6, 14, 7]);
  });
});

describe("slotsOf", () => {
  it("spreads slots evenly, and loses none", () => {
    expect(slotsOf(8, 2)).toEqual([4, 4]);
    expect(slotsOf(7, 4)).toEqual([2, 2, 2, 1]);
    expect(slotsOf(5, 1)).toEqual([5]);
  });
});

describe("measuringMs", () => {
  const first = { spread: { contexts: 1, threads: 8 }, single: 5, full: 10 };

  it("is longer the fewer threads there are: one thread of a large model may use up all of the time", () => {
    const ms = (contexts: number, threads: number) => measuringMs({ contexts, threads }, first, 4);

    expect([ms(1, 8), ms(4, 2), ms(4, 1), ms(1, 1)]).toEqual([2_400, 2_400, 4_800, 19_200]);
  });

  it("is no shorter than that of the first, which more threads need not make faster", () => {
    const slow = { spread: { contexts: 1, threads: 1 }, single: 5, full: 10 };

    expect(measuringMs({ contexts: 2, threads: 4 }, slow, 4)).toBe(2_400);
  });
});

describe("chooseSpread", () => {
  const rates = (contexts: number, single: number, full: number): SpreadRates => ({
    spread: spread(contexts, 1),
    single,
    full,
  });

  it("takes what is faster for many streams, if one stream does not pay for it", () => {
    expect(chooseSpread([rates(1, 100, 200), rates(2, 100, 300)]).spread.contexts).toBe(2);
    expect(chooseSpread([rates(1, 100, 200), rates(2, 50, 300)]).spread.contexts).toBe(1);
  });

  it("stays with the first for a gain of some per cent", () => {
    expect(chooseSpread([rates(1, 100, 200), rates(2, 100, 215)]).spread.contexts).toBe(1);
  });
});
