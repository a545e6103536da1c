/** Files that hold nothing but the header of what they stand for: enough to tell what a load would need. */
import { open, type FileHandle } from "node:fs/promises";
import { SourceUnavailableError } from "../../../errors.js";
import { GgufFormatError, readGgufHeader } from "../gguf-header.js";
import type { RemoteFile } from "./remote-file.js";
import { request, type Asked } from "./requests.js";

/** Far more than any header has; whatever is wrong then, the check of the file is to say it. */
const MAX_BYTES = 1 << 26;

/**
 * Writes a file of the right size with the right header; the rest of it is a gap.
 * @throws SourceUnavailableError, or the signal's reason.
 */
export async function fetchHeader(file: RemoteFile, target: string, asked: Asked): Promise<void> {
  if (!file.hasRanges)
    throw new SourceUnavailableError(
      asked.source,
      `${file.url.host} gives no part of a file, so it can be loaded only`,
    );
  const handle = await open(target, "wx+");
  try {
    await handle.truncate(file.sizeBytes);
    let here = 0;
    for (let wanted = asked.settings.limits.headerBytes; ; wanted *= 4) {
      const end = Math.min(wanted, file.sizeBytes);
      await fill(handle, file, here, end, asked);
      here = end;
      if (here >= Math.min(file.sizeBytes, MAX_BYTES) || (await isWhole(handle, file, here, asked.signal))) return;
    }
  } finally {
    await handle.close();
  }
}

async function fill(handle: FileHandle, file: RemoteFile, start: number, end: number, asked: Asked): Promise<void> {
  const headers = { range: `bytes=${start}-${end - 1}` };
  const { response, url } = await request(file.url, { method: "GET", headers }, asked);
  // else it is the whole file that comes, which may be larger than the memory
  const isPart =
    response.status === 206 && Number(response.headers.get("content-length") ?? end - start) === end - start;
  if (!isPart) await response.body?.cancel();
  const body = isPart ? await response.arrayBuffer().catch(() => asked.signal.throwIfAborted()) : undefined;
  if (body?.byteLength !== end - start)
    throw new SourceUnavailableError(asked.source, `its header did not come whole from ${url.host}`);
  await handle.write(new Uint8Array(body), 0, end - start, start);
}

/** Behind what is here are zeros, which read as a header that is damaged or longer. */
async function isWhole(handle: FileHandle, file: RemoteFile, here: number, signal: AbortSignal): Promise<boolean> {
  try {
    return (await readGgufHeader(handle, file.sizeBytes, signal)).dataOffset <= here;
  } catch (error) {
    if (error instanceof GgufFormatError) return false;
    throw error;
  }
}
