/** Where models are looked for and where they come from: one option, and the variables that the tools of this field share. */
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import path from "node:path";
import { InvalidOptionError } from "../../../errors.js";
import { shownSource } from "../../../model.js";
import { isPrivate } from "./source.js";

export interface Limits {
  /** Milliseconds without an answer, or without a further byte of a file, after which a peer counts as gone. */
  readonly stallMs: number;
  /**
   * Milliseconds in which a download must get further than it was, though bytes may come all the time. The library's count
   * goes back when a connection breaks, and stands still for up to 5 MiB at the end: slow connections need time for that.
   */
  readonly standstillMs: number;
  /** Milliseconds before the second attempt of a request; each further one waits twice as long. */
  readonly retryMs: number;
  /** Bytes that are fetched of a file at first where only its header is wanted. */
  readonly headerBytes: number;
}

export interface SourceSettings {
  /** Downloads lie here. */
  readonly modelsDir: string;
  /** Further folders of the library, with its names for files. Read only, as are the next two. */
  readonly libraryDirs: readonly string[];
  /** Folders in the layout of the hub's own cache. */
  readonly hubCaches: readonly string[];
  /** Folders with the names that llama.cpp gives its downloads. */
  readonly llamaCaches: readonly string[];
  readonly endpoint: URL;
  readonly limits: Limits;
  /** Asked for right before a request to the hub, and kept nowhere. */
  readonly token: () => Promise<string | undefined>;
}

const DEFAULT_LIMITS: Limits = { stallMs: 30_000, standstillMs: 300_000, retryMs: 500, headerBytes: 1 << 22 };

/** Reads the environment anew, so that a change of it counts from the next load on. @throws InvalidOptionError */
export function sourceSettings(modelsDir: string | undefined, limits: Limits = DEFAULT_LIMITS): SourceSettings {
  const { env } = process;
  const library = path.join(homedir(), ".node-llama-cpp", "models");
  const caches = env["XDG_CACHE_HOME"] || path.join(homedir(), ".cache");
  const hubHome = env["HF_HOME"] || path.join(caches, "huggingface");
  const llama =
    process.platform === "darwin"
      ? path.join(homedir(), "Library", "Caches", "llama.cpp")
      : path.join(caches, "llama.cpp");
  const own = path.resolve(modelsDir ?? library);
  const llamaCache = path.resolve(env["LLAMA_CACHE"] || llama);
  return {
    modelsDir: own,
    libraryDirs: [...new Set([own, library])],
    hubCaches: [...new Set([own, path.resolve(env["HF_HUB_CACHE"] || path.join(hubHome, "hub")), llamaCache])],
    llamaCaches: [llamaCache],
    endpoint: endpointOf(env["MODEL_ENDPOINT"] || env["HF_ENDPOINT"] || "https://huggingface.co"),
    limits,
    token: () => readToken(env["HF_TOKEN"], env["HF_TOKEN_PATH"] || path.join(hubHome, "token")),
  };
}

function endpointOf(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url !== undefined && isPrivate(url) && url.username === "" && url.password === "") return url;
  throw new InvalidOptionError("HF_ENDPOINT", "an https URL without a user name or password", shownSource(text));
}

async function readToken(given: string | undefined, file: string): Promise<string | undefined> {
  // no file is no token, and one that cannot be read is not worth failing for: most models need none
  const token = (given || (await readFile(file, "utf8").catch(() => ""))).trim();
  if (token === "") return undefined;
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  // never the value; and a request with it would fail with a message that shows it
  throw new InvalidOptionError("HF_TOKEN", "a token of visible ASCII characters", "one with other characters");
}
