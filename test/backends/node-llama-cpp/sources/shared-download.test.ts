import { mkdir, readFile, readdir, rename, utimes, writeFile } from "node:fs/promises";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { openPartFolder } from "../../../../src/backends/node-llama-cpp/sources/part-folder.js";
import { bytes, failureOf, startPlace, type Place, temporaryFolder } from "./sources-fixture.js";

const REPO = "maker/Model-GGUF";
const FILE = "Model-Q8_0.gguf";
const SOURCE = `hf:${REPO}/${FILE}`;

describe("two loads of one file", () => {
  it("share one download, which the abort of one of them does not end", async () => {
    const { hub, find } = await startPlace();
    const body = bytes(1);
    hub.put(REPO, FILE, body);
    const reason = new Error("changed my mind");
    const leaving = new AbortController();
    const fractions: number[] = [];

    const one = find(SOURCE, { signal: leaving.signal, onDownload: () => leaving.abort(reason) });
    const other = find(SOURCE, { onDownload: (fraction) => fractions.push(fraction) });

    await expect(one).rejects.toBe(reason);
    expect((await readFile(await other)).equals(body)).toBe(true);
    const ranges = hub.bodiesSent().map(({ range }) => range);
    expect(ranges).toHaveLength(new Set(ranges).size);
    expect(fractions.at(-1)).toBe(1);
  });

  it("end it when both have aborted, at once and with their reasons", async () => {
    const { hub, find, files } = await startPlace();
    hub.put(REPO, FILE, bytes(1));
    hub.fail("body", { stallAfter: 1000 });
    const controllers = [new AbortController(), new AbortController()];
    const reasons = [new Error("first"), new Error("second")];

    const loads = controllers.map(({ signal }) => find(SOURCE, { signal }));
    await hub.stalled();
    controllers.forEach((controller, index) => controller.abort(reasons[index]));

    // before anything else can happen, and so before the download has ended
    const late = new Promise((resolve) => setImmediate(resolve, "late"));
    expect(await Promise.race([Promise.all(loads.map(failureOf)), late])).toEqual(reasons);
    expect(await files()).toEqual([]);
  });
});

describe("a download that was aborted", () => {
  it("is gone on with by the next one", async () => {
    const { hub, find } = await startPlace();
    // the library keeps whole chunks of 5 MiB; of these four the first one does not come
    const body = bytes(20);
    hub.put(REPO, FILE, body);
    hub.fail("body", { stallAfter: 1024, beginningAt: 0 });

    await abortAt(15 + 1 / 1024, find);
    hub.heal();
    hub.fail("body", { stallAfter: 0 });
    const kept = await abortAt(0, find);
    hub.heal();

    expect(kept).toBeCloseTo(15);
    expect((await readFile(await find(SOURCE))).equals(body)).toBe(true);
  });

  /** Aborts when so many MiB of 20 are here, and returns how many. */
  async function abortAt(mebibytes: number, find: Place["find"]): Promise<number> {
    const controller = new AbortController();
    let here = 0;
    const onDownload = (fraction: number) => {
      here = fraction * 20;
      if (here >= mebibytes) controller.abort(new Error("enough"));
    };
    await expect(find(SOURCE, { signal: controller.signal, onDownload })).rejects.toThrow("enough");
    return here;
  }
});

describe("a source whose signal has aborted already", () => {
  it("asks nobody", async () => {
    const { hub, find } = await startPlace();
    const reason = new Error("too late");

    await expect(find(SOURCE, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);

    expect(hub.requests).toEqual([]);
  });
});

describe("the folder of a download under way", () => {
  it("is one's own, also against another process; what was left is gone on with", async () => {
    const parent = await temporaryFolder();
    const first = await openPartFolder(parent, "key", false);
    await writeFile(path.join(first.path, "some"), "bytes");
    const second = await openPartFolder(parent, "key", false);

    expect(second.path).not.toBe(first.path);
    expect(await readdir(second.path)).toEqual([]);
    await second.remove();
    await first.keep();
    expect(await readdir((await openPartFolder(parent, "key", false)).path)).toEqual(["some"]);
  });

  it.each([
    ["goes on with what a killed process has left long ago, where a checksum tells whether it is whole", true, 3600, 1],
    ["does not where nothing would tell", false, 3600, 0],
    ["does not while it may be alive", true, 60, 0],
  ])("%s", async (_name, isChecked, ageSeconds, expected) => {
    const parent = await temporaryFolder();
    const orphan = path.join(parent, "key.orphan");
    await mkdir(orphan);
    await writeFile(path.join(orphan, "some"), "bytes");
    const then = Date.now() / 1000 - ageSeconds;
    await utimes(path.join(orphan, "some"), then, then);
    await utimes(orphan, then, then);

    const part = await openPartFolder(parent, "key", isChecked);

    expect(await readdir(part.path)).toHaveLength(expected);
  });

  it("gives way when another one has left a part meanwhile", async () => {
    const parent = await temporaryFolder();
    const parts = [await openPartFolder(parent, "key", true), await openPartFolder(parent, "key", true)];
    for (const part of parts) await writeFile(path.join(part.path, "some"), "bytes");
    await rename(parts[0]?.path ?? "", path.join(parent, "key"));

    await parts[1]?.keep();

    expect(await readdir(parent)).toEqual(["key"]);
  });
});
