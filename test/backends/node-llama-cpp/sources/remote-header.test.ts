import { open, readFile, readdir, stat } from "node:fs/promises";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { resolveGgufModel } from "../../../../src/backends/node-llama-cpp/gguf-file.js";
import { readGgufHeader } from "../../../../src/backends/node-llama-cpp/gguf-header.js";
import { fetchHeader } from "../../../../src/backends/node-llama-cpp/sources/remote-header.js";
import { makeRandomModel } from "../../../../src/testing/index.js";
import { failureOf, never, startPlace, temporaryFolder } from "./sources-fixture.js";

const REPO = "maker/Model-GGUF";

describe("the header of a model that is elsewhere", () => {
  it.each([1, 3])("tells the same as its files would, which are not fetched: %i of them", async (parts) => {
    const { hub, find, files } = await startPlace();
    const here = await makeRandomModel(path.join(await temporaryFolder(), "m.gguf"), { preset: "tiny", parts });
    for (const file of here) hub.put(REPO, path.basename(file), await readFile(file));
    const source = `hf:${REPO}/${path.basename(here[0])}`;
    const headersIn = await temporaryFolder();

    const planned = await resolveGgufModel(source, {}, never, () => find(source, { headersIn: async () => headersIn }));
    const real = await resolveGgufModel(here[0], {}, never);

    expect(planned.info.metadata).toEqual(real.info.metadata);
    expect(planned.info.fullTensorInfo).toEqual(real.info.fullTensorInfo);
    expect(planned.sizeBytes).toBe(real.sizeBytes);
    expect(await files()).toEqual([]);
    expect(await readdir(headersIn)).toHaveLength(parts);
  });

  it("is fetched in as many pieces as it has, and no further", async () => {
    const { hub, find } = await startPlace();
    const [file] = await makeRandomModel(path.join(await temporaryFolder(), "m.gguf"), { preset: "tiny" });
    hub.put(REPO, "m.gguf", await readFile(file));

    await find(`hf:${REPO}/m.gguf`, { headersIn: temporaryFolder });

    const ranges = hub.bodiesSent().map(({ range }) => range);
    expect(ranges.slice(0, 2)).toEqual(["bytes=0-999", "bytes=1000-3999"]);
    const last = Number(ranges.at(-1)?.split("-")[1]);
    expect(last).toBeLessThan((await stat(file)).size - 1);
  });

  it("is not taken for whole where what is missing would read as zeros", async () => {
    const [file] = await makeRandomModel(path.join(await temporaryFolder(), "m.gguf"), { preset: "tiny" });
    const handle = await open(file);
    const { dataOffset } = await readGgufHeader(handle, (await stat(file)).size, never);
    await handle.close();
    const real = await resolveGgufModel(file, {}, never);

    // the last fields before the data are the place of the last tensor
    for (let missing = 4; missing <= 48; missing += 4) {
      const { hub, find } = await startPlace({ headerBytes: dataOffset - missing });
      hub.put(REPO, "m.gguf", await readFile(file));
      const source = `hf:${REPO}/m.gguf`;
      const planned = await resolveGgufModel(source, {}, never, () => find(source, { headersIn: temporaryFolder }));

      expect(planned.info.fullTensorInfo).toEqual(real.info.fullTensorInfo);
    }
  });

  it("cannot be had of a server that gives no parts, or that is cut off", async () => {
    const options = { headersIn: temporaryFolder };
    const stubborn = await startPlace({ ranges: false });
    stubborn.hub.put(REPO, "m.gguf", Buffer.alloc(5000));
    const cut = await startPlace();
    cut.hub.put(REPO, "m.gguf", Buffer.alloc(5000));
    cut.hub.fail("body", { endAfter: 10 });

    const errors = [
      await failureOf(stubborn.find(`hf:${REPO}/m.gguf`, options)),
      await failureOf(cut.find(`hf:${REPO}/m.gguf`, options)),
    ];

    for (const error of errors) expect(error).toMatchObject({ code: "source_unavailable" });
    expect(errors[0]?.message).toMatch(/gives no part of a file, so it can be loaded only/);
    expect(errors[1]?.message).toMatch(/its header did not come whole from 127/);
  });

  it("is not looked for in a whole file that comes instead of a part: that is not read", async () => {
    // who reads it waits for a rest that does not come
    const { hub, settings } = await startPlace({ ranges: false, stallMs: 60_000 });
    hub.put(REPO, "m.gguf", Buffer.alloc(5000));
    hub.fail("body", { stallAfter: 100 });
    const url = new URL(`${hub.endpoint}/${REPO}/resolve/main/m.gguf`);
    const file = { url, sizeBytes: 5000, sha256: undefined, etag: undefined, hasRanges: true };
    const target = path.join(await temporaryFolder(), "header");

    const error = await failureOf(fetchHeader(file, target, { source: url.href, settings, signal: never }));

    expect(error.message).toMatch(/its header did not come whole/);
  });
});
