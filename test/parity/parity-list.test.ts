import { existsSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const ROOT = new URL("../../", import.meta.url);
const LIST = readFileSync(new URL("test/PARITY.md", ROOT), "utf8");

/** How many cases each of upstream's files has. */
const UPSTREAM_CASES = {
  "test/model_manager_test.exs": 29,
  "test/model_manager/budget_test.exs": 25,
  "test/model_manager/model_io_test.exs": 14,
  "test/model_supervisor_test.exs": 9,
  "test/option_forwarding_test.exs": 1,
};

/** A citation is a file in backticks, a colon, and the names of its tests in quotes, separated by semicolons. */
const CITATION = /`(test\/[^`]+\.test\.ts)`: ("[^"]+"(?:; "[^"]+")*)/g;

function citations(text: string): { file: string; name: string }[] {
  return [...text.matchAll(CITATION)].flatMap(([, file = "", names = ""]) =>
    [...names.matchAll(/"([^"]+)"/g)].map(([, name = ""]) => ({ file, name })),
  );
}

/** The titles of the tests of a file: of `it`, of `it.each`, and of rows of a table of cases that carry their own. */
function titles(file: string): string[] {
  const url = new URL(file, ROOT);
  if (!existsSync(url)) return [];
  const TITLE = /(?:\bit\(|\bit: |\)\(|^ {4})\s*("(?:[^"\\]|\\.)*")/gm;
  return [...readFileSync(url, "utf8").matchAll(TITLE)].map(([, quoted = '""']) => unquoted(quoted));
}

/** A string with an escape that JSON does not know is no title that anybody cites. */
function unquoted(quoted: string): string {
  try {
    return String(JSON.parse(quoted));
  } catch {
    return quoted;
  }
}

/** The sections of the list by their headings, each with its text. */
function sections(): Map<string, string> {
  return new Map(
    LIST.split(/^## /m)
      .slice(1)
      .map((section) => [section.slice(0, section.indexOf("\n")), section]),
  );
}

/** The numbers at the start of the rows of a section's table. */
function rowNumbers(section: string): number[] {
  return [...section.matchAll(/^\| (\d+) \|/gm)].map(([, number]) => Number(number));
}

describe("test/PARITY.md", () => {
  it.each(Object.entries(UPSTREAM_CASES))("lists every case of %s, in order", (file, count) => {
    const section = sections().get(`\`${file}\``) ?? "";

    const numbers = rowNumbers(section);

    expect(numbers).toEqual(Array.from({ length: count }, (_, index) => index + 1));
  });

  it("says of every case which test shows it, or why none does", () => {
    const rows = LIST.split("\n").filter((line) => /^\| \d+ \|/.test(line));

    const silent = rows.filter((row) => citations(row).length === 0 && !/\bN\d+\b/.test(row));

    expect(silent).toEqual([]);
    expect(rows).toHaveLength(Object.values(UPSTREAM_CASES).reduce((sum, count) => sum + count));
  });

  it("lists every fault of upstream's server, each with a test", () => {
    const section = sections().get("Faults of its server") ?? "";
    const rows = section.split("\n").filter((line) => line.startsWith("| F"));

    expect(rows.map((row) => row.slice(2, row.indexOf(" |", 2)))).toEqual(
      Array.from({ length: 21 }, (_, index) => `F${index + 11}`),
    );
    expect(rows.filter((row) => citations(row).length === 0)).toEqual([]);
  });

  it("cites only tests that exist", () => {
    const cited = citations(LIST);

    const gone = cited.filter(({ file, name }) => !titles(file).includes(name));

    expect(gone).toEqual([]);
    expect(cited.length).toBeGreaterThan(77);
  });

  it("names no test file without a test of it", () => {
    const named = LIST.match(/`test\/[^`]+\.test\.ts`/g) ?? [];

    const read = [...LIST.matchAll(CITATION)];

    expect(read).toHaveLength(named.length);
  });

  it("explains every difference and every missing counterpart that it refers to", () => {
    const explained = new Set([...LIST.matchAll(/^\| ([DN]\d+) \|/gm)].map(([, key]) => key));
    const rows = LIST.split("\n").filter((line) => /^\| \d+ \|/.test(line));

    const referred = rows.flatMap((row) => row.match(/\b[DN]\d+\b/g) ?? []);

    expect(referred.filter((key) => !explained.has(key))).toEqual([]);
    expect(referred.length).toBeGreaterThan(0);
  });
});
