import { describe, expect, it } from "vitest";
import { isSize, parseSize } from "../../../src/manager/memory/size.js";

describe("parseSize", () => {
  it.each<[unknown, number]>([
    [0, 0],
    [8_000, 8_000],
    [1.9, 1],
    ["0GiB", 0],
    ["1KB", 1_000],
    ["1MB", 1_000_000],
    ["1GB", 1_000_000_000],
    ["1KiB", 1_024],
    ["1MiB", 1_048_576],
    ["1GiB", 1_073_741_824],
    ["1.5KiB", 1_536],
    ["0.0001KB", 0],
  ])("reads %j as %i bytes", (size, bytes) => {
    const parsed = parseSize(size);

    expect(parsed).toBe(bytes);
  });

  it.each<[unknown]>([
    [-1],
    [Number.NaN],
    [Number.POSITIVE_INFINITY],
    ["-1GiB"],
    ["1"],
    ["GiB"],
    [""],
    ["1TiB"],
    ["1gib"],
    ["1e3MB"],
    [".5GiB"],
    ["1GiB and more"],
    ["auto"],
    [1n],
    [true],
    [null],
    [undefined],
    [[1]],
    [{ bytes: 1 }],
  ])("does not take %o for a size", (value) => {
    const parsed = parseSize(value);

    expect(parsed).toBeUndefined();
  });

  it("does not take a size beyond all numbers for a size, since it would mean unlimited", () => {
    const parsed = parseSize(`${"9".repeat(400)}GiB`);

    expect(parsed).toBeUndefined();
  });
});

describe("isSize", () => {
  it.each<[unknown, boolean]>([
    [5_000, true],
    [0, true],
    ["512MiB", true],
    [-1, false],
    ["512", false],
    [undefined, false],
  ])("says of %j: %j", (value, expected) => {
    const answer = isSize(value);

    expect(answer).toBe(expected);
  });
});
