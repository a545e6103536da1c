/** Small requests: which file, how large, which checksum. The bytes of files come through the library's downloader. */
import { setTimeout as wait } from "node:timers/promises";
import { SourceUnavailableError } from "../../../errors.js";
import type { ModelSource } from "../../../model.js";
import type { SourceSettings } from "./settings.js";
import { isPrivate } from "./source.js";

const ATTEMPTS = 3;
const REDIRECTS = 10;
const REDIRECT_STATUS = new Set([301, 302, 303, 307, 308]);

export interface Asked {
  readonly source: ModelSource;
  readonly settings: SourceSettings;
  readonly signal: AbortSignal;
}

/** An answer that came, but is none: its status says why. */
export class StatusError extends SourceUnavailableError {
  readonly #status: number;
  constructor(source: ModelSource, status: number, detail: string) {
    super(source, detail);
    this.#status = status;
  }

  /** For those who catch it here, and not one more field of the contract. */
  get status(): number {
    return this.#status;
  }
}

/** The headers that a request to this URL needs: the token goes to the hub, and to nobody else. */
export async function headersFor(url: URL, settings: SourceSettings): Promise<Record<string, string>> {
  const token = url.origin === settings.endpoint.origin ? await settings.token() : undefined;
  return { "accept-encoding": "identity", ...(token !== undefined && { authorization: `Bearer ${token}` }) };
}

/**
 * Asks, and asks again where the other side says that it is its own trouble.
 * @param follow whether to go on at that address, for each redirect; otherwise the redirect is the answer.
 * @throws SourceUnavailableError, StatusError, or the signal's reason. No message and no cause shows a token or a query.
 */
export async function request(
  start: URL,
  init: { readonly method: "GET" | "HEAD"; readonly headers?: Readonly<Record<string, string>> },
  asked: Asked,
  follow: (to: URL, response: Response) => boolean = () => true,
): Promise<{ readonly response: Response; readonly url: URL }> {
  const { source, settings, signal } = asked;
  let url = start;
  let attempts = 0;
  let redirects = 0;
  for (;;) {
    const response = await attempt(url, init, asked);
    const to =
      response instanceof Response && REDIRECT_STATUS.has(response.status) ? locationOf(response, url) : undefined;
    if (response instanceof Response) {
      if (response.ok) return { response, url };
      await response.body?.cancel();
      if (to !== undefined) {
        if (!isPrivate(to)) throw insecureRedirect(source, to);
        if (!follow(to, response)) return { response, url };
        if (++redirects > REDIRECTS)
          throw new SourceUnavailableError(source, `it is redirected more than ${REDIRECTS} times`);
        url = to;
        continue;
      }
    }
    const isPassing = !(response instanceof Response) || response.status >= 500 || response.status === 429;
    if (++attempts >= ATTEMPTS || !isPassing)
      throw response instanceof Response ? statusError(response, url, source) : response;
    await wait(delayBefore(attempts, response, settings), undefined, { signal }).catch(() => signal.throwIfAborted());
  }
}

/** The answer, or what to say if there is none; throws what another attempt does not change. */
async function attempt(
  url: URL,
  { method, headers }: { readonly method: string; readonly headers?: Readonly<Record<string, string>> },
  { source, settings, signal }: Asked,
): Promise<Response | SourceUnavailableError> {
  signal.throwIfAborted();
  const allHeaders = { ...(await headersFor(url, settings)), ...headers };
  const timeout = AbortSignal.timeout(settings.limits.stallMs);
  try {
    return await fetch(url.href, {
      method,
      redirect: "manual",
      headers: allHeaders,
      signal: AbortSignal.any([signal, timeout]),
    });
  } catch (error) {
    signal.throwIfAborted();
    if (timeout.aborted)
      throw new SourceUnavailableError(source, `${url.host} has not answered for ${settings.limits.stallMs} ms`);
    const code = codeOf(error) ?? "no connection";
    const failed = new SourceUnavailableError(source, `the connection to ${url.host} failed (${code})`);
    if (code === "ECONNREFUSED" || code === "ENOTFOUND") throw failed;
    return failed;
  }
}

export function insecureRedirect(source: ModelSource, to: URL): SourceUnavailableError {
  return new SourceUnavailableError(source, `it is redirected to ${to.host} without https`);
}

function locationOf(response: Response, base: URL): URL | undefined {
  const location = response.headers.get("location");
  return location !== null && URL.canParse(location, base.href) ? new URL(location, base) : undefined;
}

function delayBefore(attempt: number, response: Response | Error, { limits }: SourceSettings): number {
  const after =
    response instanceof Response ? Number(response.headers.get("retry-after") ?? Number.NaN) * 1000 : Number.NaN;
  return Math.min(limits.stallMs, Number.isFinite(after) ? after : limits.retryMs * 2 ** (attempt - 1));
}

/** Node's `fetch` says what happened in the cause of the cause; its messages may show the address with its query. */
function codeOf(error: unknown): string | undefined {
  for (let each = error, depth = 0; each instanceof Error && depth < 4; each = each.cause, depth++)
    if ("code" in each && typeof each.code === "string") return each.code;
  return undefined;
}

/** What the hub means by a status, with the hint that it gives in a header of its own. */
function statusError({ status, headers }: Response, url: URL, source: ModelSource): StatusError {
  return new StatusError(source, status, statusDetail(status, url.host, headers.get("x-error-code") ?? ""));
}

export function statusDetail(status: number, host: string, hint = ""): string {
  const answers = `${host} answers with status ${status}`;
  if (status === 401 || status === 403)
    return `${answers}: it is private, gated or does not exist; HF_TOKEN must hold a token that has access to it`;
  if (status === 404)
    return `${answers}: there is no such ${hint === "RepoNotFound" ? "repository" : hint === "RevisionNotFound" ? "revision" : "file"}`;
  if (status === 429) return `${answers}: too many requests; try again later`;
  return answers;
}
