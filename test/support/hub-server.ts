/**
 * A model hub in this process: the file endpoints that downloads use, with a second host that files are redirected to,
 * and everything that can go wrong on the way.
 */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";

/** `manifest`: which file a quantization is; `facts`: HEAD of a file; `body`: its bytes. */
export type HubStep = "manifest" | "facts" | "body";

export type HubFault =
  | { readonly status: number; readonly headers?: Readonly<Record<string, string>> }
  /** The connection is reset after so many bytes of the answer. */
  | { readonly resetAfter: number }
  /** The connection is closed after so many bytes, as if that were all. */
  | { readonly endAfter: number }
  /** Nothing more comes after so many bytes, and the connection stays open; only of answers that begin there, if it says. */
  | { readonly stallAfter: number; readonly beginningAt?: number }
  /** The hub says this size, whatever the file has. */
  | { readonly claims: number }
  /** The right number of wrong bytes. */
  | { readonly corrupt: true };

export interface HubRequest {
  readonly host: "hub" | "cdn";
  readonly method: string;
  readonly path: string;
  readonly range: string | undefined;
  readonly authorization: string | undefined;
}

export interface HubOptions {
  /** Files are behind a redirect to another host, as the hub has them. Default true. */
  readonly redirects?: boolean;
  /** The token that each request to the hub must bring. */
  readonly token?: string;
  /** Whether a part of a file can be asked for. Default true. */
  readonly ranges?: boolean;
  /** Whether the hub tells checksums. Default true. */
  readonly checksums?: boolean;
}

export const COMMIT = "0123456789abcdef0123456789abcdef01234567";

export class HubServer {
  readonly requests: HubRequest[] = [];
  readonly #options: HubOptions;
  readonly #hub: Server;
  readonly #cdn: Server;
  /** By `user/repo/file`. */
  readonly #files = new Map<string, Buffer>();
  readonly #quants = new Map<string, string>();
  readonly #revisions = new Map([["main", COMMIT]]);
  readonly #faults: { step: HubStep; fault: HubFault; times: number; onLast: (() => void) | undefined }[] = [];
  #stalls = 0;
  readonly #waitingForStall: { count: number; resolve: () => void }[] = [];

  private constructor(options: HubOptions) {
    this.#options = options;
    this.#hub = createServer((request, response) => this.#answerHub(request, response));
    this.#cdn = createServer((request, response) => this.#answerCdn(request, response));
  }

  /** Listens on two free ports of this machine until the test ends. */
  static async start(options: HubOptions = {}): Promise<HubServer> {
    const server = new HubServer(options);
    for (const each of [server.#hub, server.#cdn]) {
      each.listen(0, "127.0.0.1");
      await once(each, "listening");
      onTestFinished(async () => {
        each.closeAllConnections();
        await new Promise((resolve) => each.close(resolve));
      });
    }
    return server;
  }

  get endpoint(): string {
    return addressOf(this.#hub);
  }

  put(repo: string, file: string, body: Buffer): void {
    this.#files.set(`${repo}/${file}`, body);
  }

  /** What the manifest of `user/repo` says about a quantization. */
  putQuant(repo: string, quant: string, file: string): void {
    this.#quants.set(`${repo}:${quant}`, file);
  }

  putRevision(name: string, commit: string): void {
    this.#revisions.set(name, commit);
  }

  /** @param onLast called when the last of these has happened. */
  fail(step: HubStep, fault: HubFault, times = Infinity, onLast?: () => void): void {
    this.#faults.push({ step, fault, times, onLast });
  }

  /** From now on all is well. */
  heal(): void {
    this.#faults.length = 0;
  }

  /** Resolves when so many answers have stalled. */
  stalled(count = 1): Promise<void> {
    if (this.#stalls >= count) return Promise.resolve();
    return new Promise((resolve) => this.#waitingForStall.push({ count, resolve }));
  }

  bodiesSent(): readonly HubRequest[] {
    return this.requests.filter(({ host, method }) => method === "GET" && (host === "cdn" || !this.#redirects));
  }

  get #redirects(): boolean {
    return this.#options.redirects ?? true;
  }

  #note(host: HubRequest["host"], request: IncomingMessage): void {
    const { range, authorization } = request.headers;
    this.requests.push({ host, method: request.method ?? "", path: request.url ?? "", range, authorization });
  }

  #fault(step: HubStep): HubFault | undefined {
    const rule = this.#faults.find(({ step: each, times }) => each === step && times > 0);
    if (rule !== undefined && --rule.times === 0) rule.onLast?.();
    return rule?.fault;
  }

  #answerHub(request: IncomingMessage, response: ServerResponse): void {
    this.#note("hub", request);
    const { token } = this.#options;
    if (token !== undefined && request.headers.authorization !== `Bearer ${token}`) return fail(response, 401);
    const { pathname } = new URL(request.url ?? "", "http://hub");
    const manifest = /^\/v2\/([^/]+\/[^/]+)\/manifests\/(.+)$/.exec(pathname);
    if (manifest !== null) return this.#manifest(response, `${manifest[1]}:${manifest[2]}`);
    const [, repo = "", revision = "", file = ""] = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(pathname) ?? [];
    const commit = this.#revisions.get(decodeURIComponent(revision)) ?? revision;
    const body = this.#files.get(`${repo}/${decodeURIComponent(file)}`) ?? this.#files.get(pathname.slice(1));
    if (body === undefined || (file !== "" && ![...this.#revisions.values()].includes(commit)))
      return fail(response, 404);
    const sha256 = createHash("sha256").update(body).digest("hex");
    response.setHeader("x-repo-commit", commit);
    response.setHeader("accept-ranges", this.#options.ranges === false ? "none" : "bytes");
    response.setHeader("etag", `"${sha256.slice(0, 40)}"`);
    if ((this.#options.checksums ?? true) && file !== "") {
      response.setHeader("x-linked-etag", `"${sha256}"`);
      response.setHeader("x-linked-size", String(body.length));
    }
    if (this.#redirects && file !== "") {
      const fault = request.method === "HEAD" ? this.#fault("facts") : undefined;
      if (fault !== undefined && "claims" in fault) response.setHeader("x-linked-size", String(fault.claims));
      else if (fault !== undefined) return this.#send(request, response, body, fault);
      response.setHeader("location", `${addressOf(this.#cdn)}/${repo}/${file}?signature=cdn-secret`);
      response.writeHead(302).end();
      return;
    }
    this.#send(request, response, body, this.#fault(request.method === "HEAD" ? "facts" : "body"));
  }

  #answerCdn(request: IncomingMessage, response: ServerResponse): void {
    this.#note("cdn", request);
    const { pathname } = new URL(request.url ?? "", "http://cdn");
    const body = this.#files.get(decodeURIComponent(pathname.slice(1)));
    if (body === undefined) return fail(response, 404);
    response.setHeader("accept-ranges", this.#options.ranges === false ? "none" : "bytes");
    this.#send(request, response, body, this.#fault(request.method === "HEAD" ? "facts" : "body"));
  }

  #manifest(response: ServerResponse, quant: string): void {
    const fault = this.#fault("manifest");
    if (fault !== undefined && "status" in fault) return fail(response, fault.status, fault.headers);
    const file = this.#quants.get(quant);
    if (file === undefined) return fail(response, 400);
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ ggufFile: { rfilename: file } }));
  }

  #send(request: IncomingMessage, response: ServerResponse, whole: Buffer, fault: HubFault | undefined): void {
    if (fault !== undefined && "status" in fault) return fail(response, fault.status, fault.headers);
    const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [];
    const isPart = from !== undefined && this.#options.ranges !== false;
    let body = isPart ? whole.subarray(Number(from), Number(to) + 1) : whole;
    if (isPart) response.setHeader("content-range", `bytes ${from}-${to}/${whole.length}`);
    response.writeHead(isPart ? 206 : 200, { "content-length": body.length });
    if (request.method === "HEAD" && fault !== undefined && "resetAfter" in fault) {
      response.socket?.resetAndDestroy();
      return;
    }
    if (request.method === "HEAD" && (fault === undefined || !("stallAfter" in fault))) {
      response.end();
      return;
    }
    if (fault === undefined || "claims" in fault) return void response.end(body);
    if ("corrupt" in fault) {
      body = Buffer.from(body);
      body[body.length >> 1] = (body[body.length >> 1] ?? 0) ^ 0xff;
      return void response.end(body);
    }
    if ("stallAfter" in fault) {
      if ((fault.beginningAt ?? Number(from ?? 0)) !== Number(from ?? 0)) return void response.end(body);
      if (request.method !== "HEAD" && fault.stallAfter > 0) response.write(body.subarray(0, fault.stallAfter));
      this.#stalls++;
      for (const { count, resolve } of this.#waitingForStall) if (this.#stalls >= count) resolve();
      return;
    }
    const sent = "resetAfter" in fault ? fault.resetAfter : fault.endAfter;
    response.write(body.subarray(0, sent), () => {
      if ("resetAfter" in fault) response.socket?.resetAndDestroy();
      else response.socket?.end();
    });
  }
}

function addressOf(server: Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function fail(response: ServerResponse, status: number, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(status, headers).end("an error page");
}
