/** One file from the network into a folder, by the library's downloader, with the guards that it needs. */
import { statfs } from "node:fs/promises";
import { Worker } from "node:worker_threads";
import { SourceUnavailableError, StorageFullError } from "../../../errors.js";
import type { ModelSource } from "../../../model.js";
import type { RemoteFile } from "./remote-file.js";
import { headersFor, insecureRedirect, statusDetail } from "./requests.js";
import type { SourceSettings } from "./settings.js";
import { isPrivate } from "./source.js";

/** What the thread is given. */
export interface TransferOrder {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly sizeBytes: number;
  readonly hasRanges: boolean;
  /** Which every answer must bear. */
  readonly etag: string | undefined;
  readonly wantsChecksum: boolean;
  readonly directory: string;
  readonly fileName: string;
}

/** What the thread says. */
export type TransferNews =
  | { readonly type: "started" }
  /** How much of the file is here, as the library counts, and how many bytes have come in all. */
  | { readonly type: "progress"; readonly bytes: number; readonly received: number }
  | { readonly type: "written" }
  /** Where the bytes come from instead. */
  | { readonly type: "redirected"; readonly origin: string }
  /** The library tries again. */
  | { readonly type: "trouble"; readonly detail: string }
  | { readonly type: "received"; readonly sizeBytes: number; readonly sha256: string | undefined }
  | {
      readonly type: "failed";
      readonly why:
        | { readonly kind: "status"; readonly status: number }
        | { readonly kind: "code"; readonly code: string }
        | { readonly kind: "cut" }
        | { readonly kind: "changed" };
    }
  | { readonly type: "stopped" };

export interface Transfer {
  readonly source: ModelSource;
  readonly file: RemoteFile;
  readonly directory: string;
  readonly settings: SourceSettings;
  readonly signal: AbortSignal;
  readonly onBytes: (bytes: number) => void;
}

/** Name of a complete file in the folder; before, the library adds `.ipull`. */
export const PART_NAME = "model.gguf";
/** How long the library may take to finish what it is writing. */
const STOP_MS = 2000;

export class ContentError extends SourceUnavailableError {}

/**
 * Resolves when the file is whole, of the right size and checksum, and on the disk. Where it rejects, what came so far is in
 * the folder, and a further call goes on from there.
 * @throws ContentError if what came is not what was announced, and must not be gone on with; SourceUnavailableError,
 * StorageFullError, or the signal's reason.
 */
export async function transfer(input: Transfer): Promise<void> {
  const { source, file, directory, settings, signal } = input;
  signal.throwIfAborted();
  const order: TransferOrder = {
    url: file.url.href,
    headers: await headersFor(file.url, settings),
    sizeBytes: file.sizeBytes,
    hasRanges: file.hasRanges,
    // with a checksum nothing is left to be told by it, and the hub's store has tags of its own
    etag: file.sha256 === undefined ? file.etag : undefined,
    wantsChecksum: file.sha256 !== undefined,
    directory,
    fileName: PART_NAME,
  };
  const worker = new Worker(new URL("./transfer-thread.js", import.meta.url), { workerData: order });
  try {
    const received = await follow(worker, input).catch(async (error: unknown) => {
      await letFinish(worker);
      throw error;
    });
    if (received.sizeBytes !== file.sizeBytes)
      throw new ContentError(source, `${received.sizeBytes} bytes came instead of ${file.sizeBytes}`);
    if (received.sha256 !== file.sha256)
      throw new ContentError(
        source,
        `what came has the checksum ${received.sha256} instead of ${file.sha256} (sha256)`,
      );
  } finally {
    await worker.terminate();
  }
}

/** Listens until the file is here, and gives up when nothing more comes. */
function follow(
  worker: Worker,
  { source, file, directory, settings, signal, onBytes }: Transfer,
): Promise<Extract<TransferNews, { type: "received" }>> {
  const { stallMs, standstillMs } = settings.limits;
  return new Promise((resolve, reject) => {
    let most = 0;
    let trouble: string | undefined;
    let received = 0;
    let silence: NodeJS.Timeout | undefined;
    let standstill: NodeJS.Timeout | undefined;
    const giveUpAfter = (ms: number) => {
      const after = trouble === undefined ? "" : `; the last attempt ended with ${trouble}`;
      const detail = `no further byte has come from ${file.url.host} for ${ms} ms (${most} of ${file.sizeBytes} are here)${after}`;
      end(reject, new SourceUnavailableError(source, detail));
    };
    const end = <Value>(settle: (value: Value) => void, value: Value) => {
      clearTimeout(silence);
      clearTimeout(standstill);
      signal.removeEventListener("abort", onAbort);
      settle(value);
    };
    const onAbort = () => end(reject, signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });

    worker.on("message", (news: TransferNews) => {
      switch (news.type) {
        case "started":
          silence = setTimeout(giveUpAfter, stallMs, stallMs);
          standstill = setTimeout(giveUpAfter, standstillMs, standstillMs);
          return;
        case "progress":
          if (news.received !== received) silence?.refresh();
          received = news.received;
          // an attempt that begins anew counts only from where the best one ended
          if (news.bytes <= most) return;
          most = news.bytes;
          onBytes(most);
          standstill?.refresh();
          return;
        case "written":
          // what follows is the checksum, during which no byte comes
          clearTimeout(silence);
          clearTimeout(standstill);
          return;
        case "redirected":
          if (!isPrivate(new URL(news.origin))) end(reject, insecureRedirect(source, new URL(news.origin)));
          return;
        case "trouble":
          trouble = news.detail;
          return;
        case "received":
          return end(resolve, news);
        case "failed":
          void failure(news.why, { source, file, directory })
            .catch((fault: unknown) => fault)
            .then((error) => end(reject, error));
          return;
        case "stopped":
          return;
      }
    });
    const onDeath = (cause?: unknown) =>
      end(reject, new SourceUnavailableError(source, "its download has crashed", cause));
    worker.on("error", onDeath);
    worker.on("exit", () => onDeath());
  });
}

async function failure(
  why: Extract<TransferNews, { type: "failed" }>["why"],
  { source, file, directory }: Pick<Transfer, "source" | "file" | "directory">,
): Promise<Error> {
  const { host } = file.url;
  switch (why.kind) {
    case "status":
      return new SourceUnavailableError(source, statusDetail(why.status, host));
    case "cut":
      return new ContentError(
        source,
        `the connection to ${host} was cut, and it cannot go on from the middle of a file`,
      );
    case "changed":
      return new ContentError(source, `the file at ${host} is not the one that was begun with`);
    case "code":
      return (
        (await storageError(why.code, directory, file.sizeBytes)) ??
        new SourceUnavailableError(source, `its download failed (${why.code})`)
      );
  }
}

/** The error for a write that failed for want of room; `undefined` for any other code. */
export async function storageError(
  code: unknown,
  directory: string,
  requiredBytes: number,
): Promise<StorageFullError | undefined> {
  if (code !== "ENOSPC" && code !== "EDQUOT") return undefined;
  return new StorageFullError({ pathKind: "models", requiredBytes, availableBytes: await freeBytes(directory) });
}

/** Infinite where the file system does not count. */
export async function freeBytes(directory: string): Promise<number> {
  const { blocks, bavail, bsize } = await statfs(directory);
  return blocks === 0 ? Infinity : bavail * bsize;
}

/** Lets the library finish what it is writing, so that the part is whole as far as it goes. */
function letFinish(worker: Worker): Promise<void> {
  return new Promise((resolve) => {
    const deadline = setTimeout(resolve, STOP_MS);
    const end = () => {
      clearTimeout(deadline);
      resolve();
    };
    worker.on("exit", end);
    worker.on("message", (news: TransferNews) => {
      if (news.type === "stopped") end();
    });
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread, no window
    worker.postMessage("stop");
  });
}
