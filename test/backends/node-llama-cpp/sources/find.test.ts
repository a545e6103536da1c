import { mkdir, rm, symlink, writeFile } from "node:fs/promises";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { COMMIT } from "../../../support/hub-server.js";
import { failureOf, startPlace, write, type Place } from "./sources-fixture.js";

const OTHER = "a".repeat(40);
const FILE = "Model-Q8_0.gguf";
const SOURCE = `hf:maker/Model-GGUF/${FILE}`;

/** As the hub's own tools write it: the bytes by their checksum, and links to them. */
async function inHubCache({ folder }: Place, commit: string, file: string, branch?: string): Promise<string> {
  const repository = path.join(folder, "hub", "models--maker--Model-GGUF");
  const blob = await write(repository, "blobs", `${commit}-${path.basename(file)}`);
  const link = path.join(repository, "snapshots", commit, file);
  await mkdir(path.dirname(link), { recursive: true });
  await symlink(blob, link);
  if (branch !== undefined) {
    await mkdir(path.join(repository, "refs"), { recursive: true });
    await writeFile(path.join(repository, "refs", branch), `${commit}\n`);
  }
  return link;
}

/** Finds it without a request to anybody. */
async function findHere({ find, hub }: Place, source: string): Promise<string> {
  const file = await find(source);
  expect(hub.requests).toEqual([]);
  return file;
}

describe("a model that is on this machine", () => {
  it("is found in the hub's cache, by its file, its quantization, or as the best one", async () => {
    const place = await startPlace();
    const q8 = await inHubCache(place, COMMIT, FILE, "main");
    const q4 = await inHubCache(place, COMMIT, "Model-Q4_K_M.gguf");
    await inHubCache(place, COMMIT, "mmproj-Model-Q8_0.gguf");

    expect(await findHere(place, SOURCE)).toBe(q8);
    expect(await findHere(place, "hf:maker/Model-GGUF:q8_0")).toBe(q8);
    expect(await findHere(place, "hf:maker/Model-GGUF")).toBe(q4);
  });

  it("is the state that main was last known as, and the pinned one where one is pinned", async () => {
    const place = await startPlace();
    const old = await inHubCache(place, OTHER, FILE);
    const main = await inHubCache(place, COMMIT, FILE, "main");

    expect(await findHere(place, SOURCE)).toBe(main);
    expect(await findHere(place, `${SOURCE}#${OTHER}`)).toBe(old);
  });

  it("is not taken for another revision", async () => {
    const place = await startPlace();
    await inHubCache(place, OTHER, FILE, "main");
    place.hub.put("maker/Model-GGUF", FILE, Buffer.from("another"));

    expect(await failureOf(place.find(`${SOURCE}#${"b".repeat(40)}`))).toMatchObject({ code: "source_unavailable" });
    expect(place.hub.requests).not.toEqual([]);
    place.hub.putRevision("v1", COMMIT);
    place.hub.fail("facts", { resetAfter: 0 });
    expect(await failureOf(place.find(`${SOURCE}#v1`))).toMatchObject({ code: "source_unavailable" });
  });

  it("is found under the names of the library and of llama.cpp", async () => {
    const place = await startPlace();
    const byFile = await write(place.folder, "library", "hf_maker_Model-Q8_0.gguf");
    const byQuant = await write(place.folder, "library", "hf_maker_Model.Q8_0.gguf");
    expect(await findHere(place, SOURCE)).toBe(byFile);
    expect(await findHere(place, "hf:maker/Model-GGUF:Q8_0")).toBe(byQuant);

    await rm(path.join(place.folder, "library"), { recursive: true });
    const llama = await write(place.folder, "llama", `maker_Model-GGUF_${FILE}`);
    expect(await findHere(place, SOURCE)).toBe(llama);
    expect(await findHere(place, "hf:maker/Model-GGUF:Q8_0")).toBe(llama);
  });

  it("is found only with all parts of its set", async () => {
    const place = await startPlace();
    const first = await inHubCache(place, COMMIT, "big-00001-of-00002.gguf", "main");
    const source = "hf:maker/Model-GGUF/big-00002-of-00002.gguf";

    expect(await failureOf(place.find(source))).toMatchObject({ code: "source_unavailable" });
    place.hub.requests.length = 0;
    await inHubCache(place, COMMIT, "big-00002-of-00002.gguf");
    expect(await findHere(place, source)).toBe(first);
  });
});
