/**
 * Runs one download of the library. It does so in a thread of its own, because only the end of a thread stops it for
 * certain, and because what it needs to be safe must not be done to the whole process (ADR 0016). In the sources this is
 * JavaScript as well: Node starts threads from files, and of the versions that this library runs on not all read
 * TypeScript.
 */
import { createHash } from "node:crypto";
import { open } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parentPort, workerData } from "node:worker_threads";
import { createModelDownloader } from "node-llama-cpp";

/** @typedef {import("./transfer.js").TransferOrder} TransferOrder */
/** @typedef {import("./transfer.js").TransferNews} TransferNews */

const PROGRESS_MS = 100;
/** What the library is told: it knows neither the real address nor the headers, so it can show and forward neither. */
const ADDRESS = "https://model.invalid/model.gguf";

/** @type {TransferOrder} */
const order = workerData;
const fetchFromNetwork = globalThis.fetch;
let hasStarted = false;
let isStopping = false;
let wholeBodies = 0;
let received = 0;

/** @param {TransferNews} news */
function tell(news) {
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread's port, no window
  parentPort?.postMessage(news);
}

/**
 * Says why it cannot go on, and waits for the end of the thread: the library would try for ever.
 * @param {Extract<TransferNews, { type: "failed" }>["why"]} why
 * @returns {Promise<never>}
 */
function giveUp(why) {
  tell({ type: "failed", why });
  return new Promise(() => undefined);
}

/** @param {unknown} error */
function codeOf(error) {
  /** @type {unknown} */
  let each = error;
  for (let depth = 0; each instanceof Error && depth < 4; depth++, each = each.cause)
    if ("code" in each && typeof each.code === "string") return each.code;
  return error instanceof Error ? error.name : "unknown";
}

/** The library asks for a size first, and then for the bytes; in this thread it is the only one who asks. */
globalThis.fetch = async (_input, init) => {
  if (!hasStarted) {
    const headers = { "content-length": `${order.sizeBytes}`, "accept-ranges": order.hasRanges ? "bytes" : "none" };
    return Object.defineProperty(new Response(null, { headers }), "url", { value: ADDRESS });
  }
  const range = new Headers(init?.headers).get("range");
  // without ranges a second attempt starts at the first byte, which the library would write where the first one ended
  if (range === null && ++wholeBodies > 1) return giveUp({ kind: "cut" });
  let response;
  try {
    // a redirect to another host loses the authorization, by the rules of fetch
    const headers = { ...order.headers, ...(range !== null && { range }) };
    response = await fetchFromNetwork(order.url, { headers, signal: init?.signal ?? null });
  } catch (error) {
    if (!isStopping) tell({ type: "trouble", detail: codeOf(error) });
    throw error;
  }
  if (response.redirected) tell({ type: "redirected", origin: new URL(response.url).origin });
  const { status } = response;
  const etag = response.headers.get("etag")?.replaceAll('"', "");
  if (order.etag !== undefined && response.ok && etag !== order.etag) return giveUp({ kind: "changed" });
  if (range !== null && status === 200) return giveUp({ kind: "changed" });
  if (status >= 500 || status === 429) tell({ type: "trouble", detail: `status ${status}` });
  else if (!response.ok) return giveUp({ kind: "status", status });
  return counted(response);
};

/** @param {Response} response */
function counted(response) {
  /** @type {TransformStream<Uint8Array, Uint8Array>} */
  const counter = new TransformStream({
    transform(chunk, controller) {
      received += chunk.byteLength;
      controller.enqueue(chunk);
    },
  });
  return new Response(response.body?.pipeThrough(counter), response);
}

// A write that fails is tried again for a quarter of an hour, or, when the disk is full, rejects where nobody listens.
const handle = await open(fileURLToPath(import.meta.url));
await handle.close();
/** @type {{ write: (...args: unknown[]) => Promise<unknown> }} */
const files = Object.getPrototypeOf(handle);
const { write } = files;
files.write = async function reportingWrite(...args) {
  try {
    return await write.apply(this, args);
  } catch (error) {
    if (!isStopping) await giveUp({ kind: "code", code: codeOf(error) });
    throw error;
  }
};

const downloader = await createModelDownloader({
  modelUri: ADDRESS,
  dirPath: order.directory,
  fileName: order.fileName,
  showCliProgress: false,
  deleteTempFileOnCancel: false,
});
hasStarted = true;
tell({ type: "started" });
parentPort?.on("message", () => {
  isStopping = true;
  // waits for what is being written, so that the part can be gone on with
  void downloader.cancel().then(() => tell({ type: "stopped" }));
});

const progress = setInterval(() => tell({ type: "progress", bytes: downloader.downloadedSize, received }), PROGRESS_MS);
try {
  await downloader.download();
} catch (error) {
  await giveUp({ kind: "code", code: codeOf(error) });
} finally {
  clearInterval(progress);
}
if (!isStopping) {
  tell({ type: "progress", bytes: order.sizeBytes, received });
  tell({ type: "written" });
  tell({ type: "received", ...(await check(path.join(order.directory, order.fileName))) });
}

/**
 * Puts the file on the disk and reads it once more.
 * @param {string} file
 */
async function check(file) {
  const handle = await open(file, "r+");
  try {
    await handle.sync();
    const { size } = await handle.stat();
    if (!order.wantsChecksum) return { sizeBytes: size, sha256: undefined };
    const hash = createHash("sha256");
    for await (const chunk of handle.createReadStream({ autoClose: false, highWaterMark: 1 << 20 })) hash.update(chunk);
    return { sizeBytes: size, sha256: hash.digest("hex") };
  } finally {
    await handle.close();
  }
}
