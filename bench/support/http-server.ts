/** llama.cpp's own server, for as long as a benchmark needs it: started on a free port, measured over HTTP. */
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { Agent, request } from "node:http";
import { createServer } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { CONTEXT_SIZE, TOKENS } from "./managed.js";

const STARTS_WITHIN_MS = 60_000;

export interface HttpServerOptions {
  readonly binary: string;
  readonly file: string;
  /** Its slots. */
  readonly streams: number;
}

export class HttpServer implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #port: number;
  readonly #agent = new Agent({ keepAlive: true });

  private constructor(child: ChildProcess, port: number) {
    this.#child = child;
    this.#port = port;
  }

  /** One thread, as many cells for each slot as the others have, no cache of prompts, no web pages, no log. */
  static async start({ binary, file, streams }: HttpServerOptions): Promise<HttpServer> {
    const port = await freePort();
    const options = `--host 127.0.0.1 --port ${port} --threads 1 --threads-batch 1 --parallel ${streams}`;
    const rest = `--ctx-size ${streams * CONTEXT_SIZE} --gpu-layers 0 --cache-ram 0 --no-webui --log-disable`;
    const child = spawn(binary, ["--model", file, ...options.split(" "), ...rest.split(" ")], { stdio: "ignore" });
    child.on("error", () => undefined); // seen below: no health
    const server = new HttpServer(child, port);
    const deadline = performance.now() + STARTS_WITHIN_MS;
    while (!(await server.#isHealthy())) {
      if (child.exitCode !== null || child.pid === undefined || performance.now() > deadline) {
        await server[Symbol.asyncDispose]();
        throw new Error(`${binary} did not start (exit code ${child.exitCode})`);
      }
      await pause(50);
    }
    return server;
  }

  /** One greedy completion for each prompt, all at once, answered whole. Tokens/s of all together. */
  async generate(prompts: readonly string[], tokens = TOKENS): Promise<number> {
    const began = performance.now();
    const answers = await Promise.all(
      prompts.map((prompt) =>
        this.#post("/completion", { prompt, n_predict: tokens, temperature: 0, cache_prompt: false, stream: false }),
      ),
    );
    const seconds = (performance.now() - began) / 1000;
    for (const { tokens_predicted } of answers) {
      if (tokens_predicted !== tokens) throw new Error(`${tokens} tokens were wanted, ${tokens_predicted} came`);
    }
    return (prompts.length * tokens) / seconds;
  }

  #isHealthy(): Promise<boolean> {
    return this.#request("GET", "/health").then(
      ({ status }) => status === 200,
      () => false,
    );
  }

  async #post(path: string, body: unknown): Promise<{ readonly tokens_predicted?: number }> {
    const { status, text } = await this.#request("POST", path, JSON.stringify(body));
    if (status !== 200) throw new Error(`The server said ${status}: ${text}`);
    return JSON.parse(text) as { readonly tokens_predicted?: number };
  }

  #request(method: string, path: string, body = ""): Promise<{ readonly status: number | undefined; text: string }> {
    return new Promise((resolve, reject) => {
      const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
      const target = { host: "127.0.0.1", port: this.#port, method, path, headers, agent: this.#agent };
      const sent = request(target, (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (part: string) => (text += part));
        response.on("end", () => resolve({ status: response.statusCode, text }));
        response.on("error", reject);
      });
      sent.on("error", reject);
      sent.end(body);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#agent.destroy();
    if (this.#child.pid === undefined || this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await ended;
  }
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const address = probe.address();
  probe.close();
  await once(probe, "close");
  if (address === null || typeof address === "string") throw new Error("There is no free port");
  return address.port;
}
