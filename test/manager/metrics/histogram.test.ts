import { describe, expect, it } from "vitest";
import { Histogram } from "../../../src/manager/metrics/histogram.js";

describe("a histogram of seconds", () => {
  it("counts each duration in its bucket and in all later ones, a bound itself included", () => {
    const histogram = new Histogram([0.1, 1, 10]);
    for (const ms of [0, 100, 101, 1000, 9999, 10_001]) histogram.observe(ms);

    expect(histogram.snapshot()).toEqual({
      buckets: [
        { upTo: 0.1, count: 2 },
        { upTo: 1, count: 4 },
        { upTo: 10, count: 5 },
      ],
      sum: 21.201,
      count: 6,
    });
  });

  it("leaves out what was not measured, and takes time that ran backwards for none", () => {
    const histogram = new Histogram([1]);
    for (const ms of [undefined, NaN, Infinity, -5]) histogram.observe(ms);

    expect(histogram.snapshot()).toEqual({ buckets: [{ upTo: 1, count: 1 }], sum: 0, count: 1 });
  });
});
