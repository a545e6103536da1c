import { describe, expect, it } from "vitest";
import { decodeWidths } from "../../../../src/backends/node-llama-cpp/scheduler/decode-width.js";

describe("decodeWidths", () => {
  it("advances all slots where nothing was measured", () => {
    expect(decodeWidths(4, [])).toEqual([0, 1, 2, 3, 4]);
  });

  it("advances all slots where the widest step is the fastest per token", () => {
    const steps = [4, 6, 8].map((width) => ({ width, ms: 10 + width }));

    expect(decodeWidths(8, steps)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8]);
  });

  it("takes a narrower step where that gives more tokens", () => {
    const steps = [
      { width: 4, ms: 4 },
      { width: 7, ms: 7 },
      { width: 8, ms: 12 },
    ];

    expect(decodeWidths(8, steps)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 7]);
  });

  it("judges what was not measured by its neighbours", () => {
    const steps = [
      { width: 4, ms: 4 },
      { width: 8, ms: 16 },
    ];

    // 5, 6 and 7 slots would take 7, 10 and 13 ms
    expect(decodeWidths(8, steps).slice(4)).toEqual([4, 4, 4, 4, 4]);
  });

  it("does not make slots wait for a gain of some per cent", () => {
    const steps = [
      { width: 4, ms: 4 },
      { width: 8, ms: 8.3 },
    ];

    expect(decodeWidths(8, steps)[8]).toBe(8);
  });
});
