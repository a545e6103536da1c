import { readFile, readdir } from "node:fs/promises";
import path from "node:path";
import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { COMMIT } from "../../../support/hub-server.js";
import { TOKEN, bytes, failureOf, startPlace } from "./sources-fixture.js";

const REPO = "maker/Model-GGUF";
const FILE = "Model-Q8_0.gguf";
const SOURCE = `hf:${REPO}/${FILE}`;
const SNAPSHOT = path.join("models--maker--Model-GGUF", "snapshots", COMMIT);
const small = Buffer.from("GGUF and some more bytes");

describe("a source on the hub", () => {
  it("is downloaded whole, under its commit, with progress, and found without a request from then on", async () => {
    const { hub, find, modelsDir, files } = await startPlace();
    const body = bytes(12);
    hub.put(REPO, FILE, body);
    const fractions: number[] = [];

    const file = await find(SOURCE, { onDownload: (fraction) => fractions.push(fraction) });
    const asked = hub.requests.length;

    expect(file).toBe(path.join(modelsDir, SNAPSHOT, FILE));
    expect((await readFile(file)).equals(body)).toBe(true);
    expect(await files()).toEqual([path.join(SNAPSHOT, FILE)]);
    expect(await readdir(path.join(modelsDir, ".incomplete"))).toEqual([]);
    expect(fractions.at(-1)).toBe(1);
    expect(fractions).toEqual(fractions.toSorted((a, b) => a - b));
    expect(await find(SOURCE)).toBe(file);
    expect(hub.requests).toHaveLength(asked);
  });

  it("may be named by its quantization, which the hub knows the file of", async () => {
    const { hub, find } = await startPlace();
    hub.put(REPO, "some/where/odd-name.gguf", small);
    hub.putQuant(REPO, "Q8_0", "some/where/odd-name.gguf");

    const file = await find(`hf:${REPO}:Q8_0`);

    expect(file.endsWith(path.join(COMMIT, "some", "where", "odd-name.gguf"))).toBe(true);
    expect(await readFile(file)).toEqual(small);
  });

  it("is downloaded with all parts of its set, whichever is named", async () => {
    const { hub, find, files } = await startPlace();
    const names = [1, 2, 3].map((part) => `big-0000${part}-of-00003.gguf`);
    for (const [index, name] of names.entries()) hub.put(REPO, name, Buffer.from(`part ${index}`));
    const fractions: number[] = [];

    const file = await find(`hf:${REPO}/${names[1]}`, { onDownload: (fraction) => fractions.push(fraction) });

    expect(path.basename(file)).toBe(names[0]);
    expect(await files()).toEqual(names.map((name) => path.join(SNAPSHOT, name)));
    expect(fractions).toEqual(fractions.toSorted((a, b) => a - b));
    expect(fractions.at(-1)).toBe(1);
  });

  it("is another file at another revision", async () => {
    const { hub, find, modelsDir } = await startPlace();
    const other = "f".repeat(40);
    hub.put(REPO, FILE, small);
    hub.putRevision("v1", other);

    const main = await find(SOURCE);
    const pinned = await find(`${SOURCE}#${other}`);

    expect(main).toBe(path.join(modelsDir, SNAPSHOT, FILE));
    expect(pinned).toBe(path.join(modelsDir, "models--maker--Model-GGUF", "snapshots", other, FILE));
  });

  it("of a branch is asked for again, and what is here serves when the hub does not answer", async () => {
    const { hub, find } = await startPlace({ stallMs: 300 });
    hub.put(REPO, FILE, small);
    hub.putRevision("v1", COMMIT);
    const first = await find(`${SOURCE}#v1`);
    hub.putRevision("v1", "e".repeat(40));
    const moved = await find(`${SOURCE}#v1`);

    hub.fail("facts", { stallAfter: 0 });

    expect(moved).not.toBe(first);
    expect(await find(`${SOURCE}#v1`)).toBe(moved);
  });

  it("goes to the disk through a proxy of the hub that has neither store nor checksums", async () => {
    const { hub, find } = await startPlace({ redirects: false, checksums: false });
    hub.put(REPO, FILE, small);

    expect(await readFile(await find(SOURCE))).toEqual(small);
  });
});

describe("a download that is disturbed", () => {
  it("goes on after a connection was reset", async () => {
    const { hub, find } = await startPlace();
    const body = bytes(12);
    hub.put(REPO, FILE, body);
    hub.fail("body", { resetAfter: 3_000_000 }, 2);

    const file = await find(SOURCE);

    expect((await readFile(file)).equals(body)).toBe(true);
  });

  it("keeps nothing of bytes that do not have the hub's checksum", async () => {
    const { hub, find, files, modelsDir } = await startPlace();
    hub.put(REPO, FILE, small);
    hub.fail("body", { corrupt: true }, 1);

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "source_unavailable", source: SOURCE, retryable: true });
    expect(error.message).toMatch(/checksum [0-9a-f]{64} instead of [0-9a-f]{64}/);
    expect(await files()).toEqual([]);
    expect(await readdir(path.join(modelsDir, ".incomplete"))).toEqual([]);
    expect(await readFile(await find(SOURCE))).toEqual(small);
  });

  it("gives up when the body is cut again and again", async () => {
    const { hub, find, files } = await startPlace({ stallMs: 700 });
    const body = bytes(12);
    hub.put(REPO, FILE, body);
    hub.fail("body", { endAfter: 100_000 });

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "source_unavailable" });
    expect(error.message).toMatch(/no further byte has come from 127\.0\.0\.1:\d+ for 700 ms/);
    expect(await files()).toEqual([]);
  });

  it("never appends a second body where the server knows no ranges", async () => {
    const { hub, find, files } = await startPlace({ ranges: false, checksums: false });
    const body = bytes(12);
    hub.put(REPO, FILE, body);
    hub.fail("body", { resetAfter: 7_000_000 }, 1);

    const error = await failureOf(find(SOURCE));

    expect(error.message).toMatch(/was cut, and it cannot go on from the middle of a file/);
    expect(await files()).toEqual([]);
    expect((await readFile(await find(SOURCE))).equals(body)).toBe(true);
  });

  it.each([
    ["file", "body", /no further byte has come from 127\.0\.0\.1:\d+ for 300 ms \(\d+ of 12582912 are here\)/],
    ["hub", "facts", /127\.0\.0\.1:\d+ has not answered for 300 ms/],
  ] as const)("does not wait for ever for a peer that falls silent: the %s", async (_what, step, message) => {
    const { hub, find } = await startPlace({ stallMs: 300 });
    hub.put(REPO, FILE, bytes(12));
    hub.fail(step, { stallAfter: 1000 });

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "source_unavailable", retryable: true });
    expect(error.message).toMatch(message);
  });

  it("asks again where the hub has trouble of its own", async () => {
    const { hub, find } = await startPlace();
    hub.put(REPO, FILE, small);
    hub.fail("facts", { status: 500 }, 1);
    hub.fail("facts", { status: 429, headers: { "retry-after": "0" } }, 1);
    hub.fail("body", { status: 503 }, 1);

    expect(await readFile(await find(SOURCE))).toEqual(small);
  });

  it.each([
    [SOURCE, /status 404: there is no such file/],
    [`hf:${REPO}:Q2_K`, /has no GGUF file with the quantization "Q2_K", or does not exist/],
  ])("says that there is nothing of the name %s", async (source, message) => {
    const { hub, find } = await startPlace();
    hub.put(REPO, "other.gguf", small);

    const error = await failureOf(find(source));

    expect(error).toMatchObject({ code: "source_unavailable", source });
    expect(error.message).toMatch(message);
  });

  it("says so when the hub has had enough of us", async () => {
    const { hub, find } = await startPlace();
    hub.put(REPO, FILE, small);
    hub.fail("facts", { status: 429 });

    expect((await failureOf(find(SOURCE))).message).toMatch(/status 429: too many requests/);
    expect(hub.requests).toHaveLength(3);
  });

  it("is refused before the first byte if the disk has no room for it", async () => {
    const { hub, find, files } = await startPlace();
    hub.put(REPO, FILE, small);
    hub.fail("facts", { claims: 2 ** 50 });

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "storage_full", pathKind: "models", retryable: true });
    expect(error).toHaveProperty("requiredBytes", 2 ** 50 + 2 ** 20);
    expect(hub.bodiesSent()).toEqual([]);
    expect(await files()).toEqual([]);
  });
});

describe("the token", () => {
  it("opens what is gated, and goes to the hub alone", async () => {
    const { hub, find } = await startPlace({ token: TOKEN, hasToken: true });
    hub.put(REPO, FILE, small);

    expect(await readFile(await find(SOURCE))).toEqual(small);

    const sent = hub.requests.map(({ host, authorization }) => `${host} ${authorization}`);
    expect(new Set(sent)).toEqual(new Set([`hub Bearer ${TOKEN}`, "cdn undefined"]));
  });

  it("is asked for where it is missing", async () => {
    const { hub, find } = await startPlace({ token: TOKEN });
    hub.put(REPO, FILE, small);

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "source_unavailable" });
    expect(error.message).toMatch(/status 401: it is private, gated or does not exist; HF_TOKEN must hold a token/);
  });

  it.each([
    ["facts", { status: 403 }],
    ["facts", { resetAfter: 0 }],
    ["body", { status: 403 }],
    ["body", { corrupt: true }],
    ["body", { endAfter: 3 }],
    ["body", { stallAfter: 3 }],
  ] as const)("is in no error, and neither is a signed address: %s %o", async (step, fault) => {
    const { hub, find } = await startPlace({ token: TOKEN, hasToken: true, stallMs: 300 });
    hub.put(REPO, FILE, small);
    hub.fail(step, fault);

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "source_unavailable" });
    const shown = inspect(error, { depth: Infinity, showHidden: true }) + JSON.stringify(error);
    expect(shown).not.toContain(TOKEN);
    expect(shown).not.toContain("cdn-secret");
  });
});
