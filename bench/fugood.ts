/**
 * Eight streams through the manager against `@fugood/llama.node` in its parallel mode, one thread each. The other library
 * is installed for this benchmark alone, below the cache folder, and runs in a process of its own.
 */
import { execFile, fork } from "node:child_process";
import { once } from "node:events";
import { access, mkdir } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { Round } from "./fugood-child.js";
import { CONTEXT_SIZE, Managed, shortPrompts, TOKENS } from "./support/managed.js";
import { alternate, isQuick, speed } from "./support/measure.js";
import type { Figure } from "./support/measure.js";
import { benchModel, CACHE } from "./support/models.js";

const VERSION = "1.7.15";
const STREAMS = 8;
const LEAST = 1;
/** Few where the other library is slow: its build for x64 uses none of a CPU's wider instructions. */
const TOKENS_OF = { "tiny-f32": 128, "small-f16": 32, "small-q4_0": 64, "large-f16": 8 } as const;
const ROUNDS = { "tiny-f32": 15, "small-f16": 5, "small-q4_0": 5, "large-f16": 3 } as const;
const FOLDER = path.join(CACHE, "fugood");
const CHILD = fileURLToPath(new URL("./fugood-child.ts", import.meta.url));

export async function fugood(): Promise<Figure[]> {
  const told = `${STREAMS} streams against \`@fugood/llama.node\` ${VERSION} in parallel mode`;
  try {
    await install();
  } catch (error) {
    const [reason] = String(error).split("\n");
    return [{ figure: told, target: `≥ ${LEAST} ×`, measured: `skipped: not installed (${reason})`, met: undefined }];
  }
  const figures: Figure[] = [];
  let build = "";
  for (const file of ["tiny-f32", "small-f16", "small-q4_0", "large-f16"] as const) {
    const source = await benchModel(file);
    const tokens = Math.min(TOKENS_OF[file], TOKENS);
    const prompts = shortPrompts(STREAMS);
    await using managed = await Managed.load(source, { maxThreads: 1, parallel: STREAMS });
    await using other = await Other.start(source);
    const { ours, theirs } = await alternate(
      { rounds: isQuick ? 1 : ROUNDS[file], warmUp: 1 },
      {
        ours: () => managed.generate(prompts, tokens),
        theirs: () => other.generate({ prompts, tokens }),
      },
    );
    figures.push(speed(`${told}, ${file}`, ours, theirs, LEAST));
    build = other.build;
  }
  return [
    ...figures,
    { figure: "what that library says of its build", target: "stated", measured: build.trim(), met: undefined },
  ];
}

/** Only the build for this platform's CPU: the ones for GPUs are large. */
async function install(): Promise<void> {
  const isThere = await access(path.join(FOLDER, "node_modules", "@fugood", "llama.node")).then(
    () => true,
    () => false,
  );
  if (isThere) return;
  await mkdir(FOLDER, { recursive: true });
  const packages = ["llama.node", `node-llama-${process.platform}-${process.arch}`];
  await promisify(execFile)("npm", [
    ...["install", "--prefix", FOLDER, "--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"],
    "--omit=optional",
    ...packages.map((name) => `@fugood/${name}@${VERSION}`),
  ]);
}

/** The other library's process. */
class Other implements AsyncDisposable {
  readonly #child: ReturnType<typeof fork>;
  build = "";

  private constructor(child: ReturnType<typeof fork>) {
    this.#child = child;
  }

  static async start(file: string): Promise<Other> {
    const child = fork(CHILD, [FOLDER, file, `${STREAMS}`, `${CONTEXT_SIZE}`], {
      execArgv: ["--import", "tsx"],
      // it logs every request
      stdio: ["ignore", "ignore", "ignore", "ipc"],
    });
    const other = new Other(child);
    other.build = String(await other.#answer()).replaceAll("|", ",");
    return other;
  }

  async generate(round: Round): Promise<number> {
    const answer = this.#answer();
    this.#child.send(round);
    const { counts, rate } = (await answer) as { readonly counts: readonly number[]; readonly rate: number };
    if (counts.some((count) => count !== round.tokens))
      throw new Error(`${round.tokens} tokens were wanted, ${counts.join(", ")} came`);
    return rate;
  }

  async #answer(): Promise<unknown> {
    const ended = new AbortController();
    const exit = once(this.#child, "exit", { signal: ended.signal }).then(([code, signal]) => {
      throw new Error(`The other library's process ended (${code ?? signal})`);
    });
    try {
      const message: unknown[] = await Promise.race([once(this.#child, "message", { signal: ended.signal }), exit]);
      return message[0];
    } finally {
      ended.abort();
      exit.catch(() => undefined);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await ended;
  }
}
