import { readFile } from "node:fs/promises";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { bytes, failureOf, startPlace } from "./sources-fixture.js";

describe("a source that is a URL", () => {
  it("is downloaded under a place of its own, whatever its name, and then needs no request", async () => {
    const { hub, find, modelsDir } = await startPlace();
    hub.put("one", "a_b.gguf", Buffer.from("the one"));
    hub.put("one", "a%20b.gguf", Buffer.from("the other"));

    const files = [await find(`${hub.endpoint}/one/a_b.gguf`), await find(`${hub.endpoint}/one/a%20b.gguf`)];
    const asked = hub.requests.length;

    expect(await Promise.all(files.map((file) => readFile(file, "utf8")))).toEqual(["the one", "the other"]);
    for (const file of files) expect(path.relative(modelsDir, file)).toMatch(/^urls.[0-9a-f]{32}.a_b\.gguf$/);
    expect(await find(`${hub.endpoint}/one/a_b.gguf`)).toBe(files[0]);
    expect(hub.requests).toHaveLength(asked);
  });

  it("never gets outside of its folder by its name; its server may know no HEAD", async () => {
    const { hub, find, modelsDir } = await startPlace();
    hub.put("one", "..%2f..%2fmodel.gguf", Buffer.from("the one"));
    hub.fail("facts", { status: 405 });

    const file = await find(`${hub.endpoint}/one/..%2f..%2fmodel.gguf`);

    expect(path.relative(modelsDir, file)).toMatch(/^urls.[0-9a-f]{32}.\.\._\.\._model\.gguf$/);
  });

  it("is not mixed from two states of the file", async () => {
    const { hub, find, files } = await startPlace();
    hub.put("one", "model.gguf", bytes(1));
    hub.fail("body", { resetAfter: 100_000 }, 1, () => hub.put("one", "model.gguf", bytes(1, 99)));

    const error = await failureOf(find(`${hub.endpoint}/one/model.gguf`));

    expect(error.message).toMatch(/the file at 127\.0\.0\.1:\d+ is not the one that was begun with/);
    expect(await files()).toEqual([]);
  });

  it("is shown without its query", async () => {
    const { hub, find } = await startPlace();

    const error = await failureOf(find(`${hub.endpoint}/one/model.gguf?signature=secret`));

    expect(error).toMatchObject({ code: "source_unavailable", source: `${hub.endpoint}/one/model.gguf` });
    expect(JSON.stringify(error)).not.toContain("secret");
  });

  it("is not followed to where nothing is encrypted", async () => {
    const { hub, find } = await startPlace();
    hub.put("one", "model.gguf", Buffer.from("the one"));
    hub.fail("facts", { status: 302, headers: { location: "http://elsewhere.example/model.gguf" } });

    const error = await failureOf(find(`${hub.endpoint}/one/model.gguf`));

    expect(error.message).toMatch(/is redirected to elsewhere\.example without https/);
  });

  it("is not taken from there either, if only its bytes are redirected", async () => {
    const { hub, find, files } = await startPlace();
    hub.put("one", "model.gguf", Buffer.from("the one"));
    // this machine too, by a name that does not say so
    const location = `${hub.endpoint.replace("127.0.0.1", "0.0.0.0")}/one/model.gguf`;
    hub.fail("body", { status: 302, headers: { location } }, 1);

    const error = await failureOf(find(`${hub.endpoint}/one/model.gguf`));

    expect(error.message).toMatch(/is redirected to 0\.0\.0\.0:\d+ without https/);
    expect(await files()).toEqual([]);
  });
});
