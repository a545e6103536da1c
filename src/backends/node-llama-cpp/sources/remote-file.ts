/** What the hub, or a web server, tells of a file before it is downloaded. */
import { SourceUnavailableError } from "../../../errors.js";
import { isCommit, isRepositoryFile, type HubSource } from "./source.js";
import { request, StatusError, type Asked } from "./requests.js";

export interface RemoteFile {
  /** Where to ask for its bytes; of the hub always with the commit, so that all parts and attempts mean one state. */
  readonly url: URL;
  readonly sizeBytes: number;
  readonly sha256: string | undefined;
  /** Tells two states of the file apart, where the address and the checksum do not. */
  readonly etag: string | undefined;
  /** Whether a part of it can be asked for. */
  readonly hasRanges: boolean;
}

/** The path in the repository of the file with this quantization, by the hub's own rule. */
export async function fileOfQuant(hub: HubSource, asked: Asked): Promise<string> {
  const { endpoint } = asked.settings;
  const tag = hub.quant ?? "latest";
  const url = at(endpoint, "v2", hub.user, hub.repo, "manifests", tag);
  // only this name gets the part of the answer that says the file
  const headers = { "user-agent": "llama-cpp" };
  const { response } = await request(url, { method: "GET", headers }, asked).catch((error: unknown) => {
    if (!(error instanceof StatusError) || (error.status !== 400 && error.status !== 404)) throw error;
    const what = hub.quant === undefined ? "no GGUF file" : `no GGUF file with the quantization "${hub.quant}"`;
    throw new SourceUnavailableError(
      hub.source,
      `the repository ${hub.user}/${hub.repo} has ${what}, or does not exist`,
    );
  });
  const file = fileIn(await response.json().catch(() => asked.signal.throwIfAborted()));
  if (file !== undefined && isRepositoryFile(file)) return file;
  throw new SourceUnavailableError(hub.source, `${url.host} does not say which file the quantization "${tag}" is`);
}

/** The commit that the revision is at now, and the file there. */
export async function hubFile(
  hub: HubSource,
  file: string,
  revision: string,
  asked: Asked,
): Promise<{ readonly commit: string; readonly file: RemoteFile }> {
  const address = (at_: string) => at(asked.settings.endpoint, hub.user, hub.repo, "resolve", at_, ...file.split("/"));
  // the first answer that says it counts: what the hub redirects to is a store that knows nothing of commits
  const told = new Map<string, string>();
  const note = ({ headers }: Response) => {
    for (const name of ["x-repo-commit", "x-linked-etag", "x-linked-size", "content-length", "accept-ranges", "etag"]) {
      const value = headers.get(name);
      if (value !== null && !(told.has(name) && name.startsWith("x-"))) told.set(name, value);
    }
  };
  const { response } = await request(address(revision), { method: "HEAD" }, asked, (to, redirect) => {
    note(redirect);
    // the store's address is signed, often for GET only; the hub has said what is to be known
    return to.origin === asked.settings.endpoint.origin || !told.has("x-linked-size");
  });
  note(response);
  const commit = told.get("x-repo-commit");
  const sizeBytes = Number(told.get("x-linked-size") ?? told.get("content-length"));
  if (commit === undefined || !isCommit(commit) || !Number.isSafeInteger(sizeBytes) || sizeBytes <= 0)
    throw new SourceUnavailableError(hub.source, `${asked.settings.endpoint.host} answers like no model hub`);
  // of a file in the hub's large store it is the checksum
  const etag = unquoted(told.get("x-linked-etag") ?? told.get("etag") ?? "");
  const sha256 = /^[0-9a-f]{64}$/.test(etag) ? etag : undefined;
  const hasRanges = told.get("accept-ranges") !== "none";
  return { commit, file: { url: address(commit), sizeBytes, sha256, etag: undefined, hasRanges } };
}

export async function webFile(url: URL, asked: Asked): Promise<RemoteFile> {
  const head = await request(url, { method: "HEAD" }, asked).catch((error: unknown) => {
    // some servers, and addresses that are signed for it, know GET only
    if (error instanceof StatusError && [403, 405, 501].includes(error.status)) return undefined;
    throw error;
  });
  const length = head?.response.headers.get("content-length");
  const { response } =
    head !== undefined && length ? head : await request(url, { method: "GET", headers: { range: "bytes=0-0" } }, asked);
  await response.body?.cancel();
  const { headers } = response;
  const total = response.status === 206 ? headers.get("content-range")?.split("/")[1] : headers.get("content-length");
  const sizeBytes = Number(total);
  if (!Number.isSafeInteger(sizeBytes) || sizeBytes <= 0)
    throw new SourceUnavailableError(asked.source, `${url.host} does not say how large the file is`);
  const hasRanges = response.status === 206 || headers.get("accept-ranges") === "bytes";
  return { url, sizeBytes, sha256: undefined, etag: strong(headers.get("etag")), hasRanges };
}

function at(endpoint: URL, ...segments: readonly string[]): URL {
  const base = endpoint.href.endsWith("/") ? endpoint.href : `${endpoint.href}/`;
  return new URL(segments.map((segment) => encodeURIComponent(segment)).join("/"), base);
}

function fileIn(manifest: unknown): string | undefined {
  const file = isObject(manifest) && isObject(manifest["ggufFile"]) ? manifest["ggufFile"]["rfilename"] : undefined;
  return typeof file === "string" ? file : undefined;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

/** A weak one says that two states mean the same, not that they are the same bytes. */
function strong(etag: string | null): string | undefined {
  return etag === null || etag.startsWith("W/") ? undefined : unquoted(etag);
}

function unquoted(etag: string): string {
  return etag.replace(/^W\//, "").replaceAll('"', "");
}
