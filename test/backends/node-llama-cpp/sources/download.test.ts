import { readFile, readdir } from "node:fs/promises";
import path from "node:path";
import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { COMMIT } from "../../../support/hub-server.js";
import { TOKEN, bytes, failureOf, startPlace } from "./sources-fixture.js";

const REPO = "maker/Model-GGUF";
const FILE = "Model-Q8_0.gguf";
const SOURCE = `hf:${REPO}/${FILE}`;
const BY_QUANT = `hf:${REPO}:Q8_0`;
const SNAPSHOT = path.join("models--maker--Model-GGUF", "snapshots", COMMIT);
const small = Buffer.from("GGUF and some more bytes");

describe("a source on the hub", () => {
  it("is downloaded whole, under its commit, with progress, and found without a request from then on", async () => {
    const { hub, find, modelsDir, files } = await startPlace();
    const body = bytes(12);
    const inRepository = path.join("some", "where", FILE);
    hub.put(REPO, `some/where/${FILE}`, body);
    hub.putQuant(REPO, "Q8_0", `some/where/${FILE}`);
    const fractions: number[] = [];

    const file = await find(BY_QUANT, { onDownload: (fraction) => fractions.push(fraction) });
    const asked = hub.requests.length;

    expect(file).toBe(path.join(modelsDir, SNAPSHOT, inRepository));
    expect((await readFile(file)).equals(body)).toBe(true);
    expect(await files()).toEqual([path.join(SNAPSHOT, inRepository)]);
    expect(await readdir(path.join(modelsDir, ".incomplete"))).toEqual([]);
    expect(fractions.at(-1)).toBe(1);
    expect(fractions).toEqual(fractions.toSorted((a, b) => a - b));
    expect(await find(BY_QUANT)).toBe(file);
    expect(await find(`hf:${REPO}/some/where/${FILE}`)).toBe(file);
    expect(hub.requests).toHaveLength(asked);
  });

  it("is downloaded with all parts of its set, whichever is named", async () => {
    const { hub, find, files } = await startPlace();
    const names = [1, 2].map((part) => `big-0000${part}-of-00002.gguf`);
    for (const [index, name] of names.entries()) hub.put(REPO, name, Buffer.from(`part ${index}`));
    const fractions: number[] = [];

    const file = await find(`hf:${REPO}/${names[1]}`, { onDownload: (fraction) => fractions.push(fraction) });

    expect(path.basename(file)).toBe(names[0]);
    expect(await files()).toEqual(names.map((name) => path.join(SNAPSHOT, name)));
    expect(fractions).toEqual(fractions.toSorted((a, b) => a - b));
    expect(fractions.at(-1)).toBe(1);
  });

  it("of a branch is asked for again, and what is here serves when the hub does not answer", async () => {
    const { hub, find } = await startPlace();
    hub.put(REPO, FILE, small);
    hub.putRevision("v1", COMMIT);
    const first = await find(`${SOURCE}#v1`);
    hub.putRevision("v1", "e".repeat(40));
    const moved = await find(`${SOURCE}#v1`);

    hub.fail("facts", { resetAfter: 0 });

    expect(moved).not.toBe(first);
    expect(await find(`${SOURCE}#v1`)).toBe(moved);
  });
});

describe("a download that is disturbed", () => {
  it("goes on after a connection was reset", async () => {
    const { hub, find } = await startPlace();
    const body = bytes(6);
    hub.put(REPO, FILE, body);
    hub.fail("body", { resetAfter: 500_000 }, 2);

    const file = await find(SOURCE);

    expect((await readFile(file)).equals(body)).toBe(true);
  });

  it("never appends a second body where the server knows no ranges", async () => {
    const { hub, find, files } = await startPlace({ ranges: false, checksums: false });
    // the library counts in chunks of 5 MiB
    hub.put(REPO, FILE, bytes(7));
    hub.fail("body", { resetAfter: 6 * 1024 ** 2 }, 1);

    const error = await failureOf(find(SOURCE));

    expect(error.message).toMatch(/was cut, and it cannot go on from the middle of a file/);
    expect(await files()).toEqual([]);
  });

  it("asks again where the hub has trouble of its own; it may have neither store nor checksums", async () => {
    const { hub, find } = await startPlace({ redirects: false, checksums: false });
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

  it("leaves no part of wrong bytes, with which nobody could go on", async () => {
    const { hub, find, modelsDir } = await startPlace();
    hub.put(REPO, FILE, small);
    hub.fail("body", { corrupt: true }, 1);

    await failureOf(find(SOURCE));

    expect(await readdir(path.join(modelsDir, ".incomplete"))).toEqual([]);
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
  it.each([true, false])("opens what is gated, and goes to the hub alone, with checksums: %s", async (checksums) => {
    const { hub, find } = await startPlace({ token: TOKEN, hasToken: true, checksums });
    hub.put(REPO, FILE, small);

    expect(await readFile(await find(SOURCE))).toEqual(small);

    // the store's addresses are signed for GET; only where the hub tells nothing it has to be asked
    const headsOfStore = hub.requests.filter(({ host, method }) => host === "cdn" && method === "HEAD");
    expect(headsOfStore).toHaveLength(checksums ? 0 : 1);
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
    ["facts", { status: 403 }, /status 403: it is private, gated or does not exist/],
    ["facts", { resetAfter: 0 }, /the connection to 127\.0\.0\.1:\d+ failed \([A-Z_]+\)/],
    ["facts", { stallAfter: 0 }, /127\.0\.0\.1:\d+ has not answered for 300 ms/],
    ["body", { status: 403 }, /status 403: it is private, gated or does not exist/],
    ["body", { corrupt: true }, /checksum [0-9a-f]{64} instead of [0-9a-f]{64} \(sha256\)/],
    ["body", { endAfter: 3 }, /no further byte has come from 127\.0\.0\.1:\d+ for 300 ms \(\d of 24 are here\)/],
    ["body", { stallAfter: 3 }, /no further byte has come from 127\.0\.0\.1:\d+ for 300 ms \(\d of 24 are here\)/],
  ] as const)("is in no error, and neither is a signed address: %s %o", async (step, fault, message) => {
    const limit = "stallAfter" in fault ? { stallMs: 300 } : "endAfter" in fault ? { standstillMs: 300 } : {};
    const { hub, find, files } = await startPlace({ token: TOKEN, hasToken: true, ...limit });
    hub.put(REPO, FILE, small);
    hub.fail(step, fault);

    const error = await failureOf(find(SOURCE));

    expect(error).toMatchObject({ code: "source_unavailable", source: SOURCE, retryable: true });
    expect(error.message).toMatch(message);
    expect(await files()).toEqual([]);
    const shown = inspect(error, { depth: Infinity, showHidden: true }) + JSON.stringify(error);
    expect(shown).not.toContain(TOKEN);
    expect(shown).not.toContain("cdn-secret");
  });
});
