/** What a caller's source says, checked: every name in it ends up in a path or in a URL. */
import { InvalidOptionError } from "../../../errors.js";
import { shownSource, type ModelSource } from "../../../model.js";

/** A model on the hub. */
export interface HubSource {
  readonly kind: "hub";
  /** As the caller gave it. */
  readonly source: ModelSource;
  readonly user: string;
  readonly repo: string;
  /** A branch, a tag or a commit; absent: whatever there is, else `main`. */
  readonly revision: string | undefined;
  /** Path of the file in the repository; absent: which one it is, is for {@link HubSource.quant} to say. */
  readonly file: string | undefined;
  /** Quantization by its name, such as `Q8_0`; absent together with `file`: the one that the hub thinks best. */
  readonly quant: string | undefined;
}

/** A file anywhere else. */
export interface UrlSource {
  readonly kind: "url";
  readonly source: ModelSource;
  readonly url: URL;
}

export type ParsedSource = { readonly kind: "path" } | HubSource | UrlSource;

const FORMS =
  "the path of a GGUF file, hf:user/repo, hf:user/repo:quant, hf:user/repo/file.gguf, hf:user/repo/file.gguf#revision, or an https URL";
const NAME = /^[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?$/;
const QUANT = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;
const URL_SCHEME = /^([a-z][a-z0-9+.-]*):\/\//i;
const COMMIT = /^[0-9a-f]{40}$/;

/**
 * @param endpoint of the hub: a URL that leads there is the same as the `hf:` form.
 * @throws InvalidOptionError, which never shows what may be a secret.
 */
export function parseSource(source: ModelSource, endpoint: URL): ParsedSource {
  if (/^hf:/i.test(source)) return parseHub(source);
  if (!URL_SCHEME.test(source)) return { kind: "path" };
  if (!URL.canParse(source)) throw refused(source, "a valid URL");
  const url = new URL(source);
  if (!isPrivate(url))
    throw refused(source, "an https URL (http is for this machine only), a path, or hf:user/repo:quant");
  if (url.username !== "" || url.password !== "") throw refused(source, "a URL without a user name or password");
  url.hash = "";
  return (url.origin === endpoint.origin && hubUrl(source, url)) || { kind: "url", source, url };
}

/** Nobody on the way can read or change what is said: unencrypted requests stay on this machine. */
export function isPrivate(url: URL): boolean {
  const isLoopback = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(url.hostname);
  return url.protocol === "https:" || (url.protocol === "http:" && isLoopback);
}

/** Whether this names one state of a repository for ever, which a branch or a tag does not. */
export function isCommit(revision: string): boolean {
  return COMMIT.test(revision);
}

/** Whether this is the path of a GGUF file inside a repository, and stays inside when it is joined to a folder. */
export function isRepositoryFile(file: string): boolean {
  return file.length <= 255 && /\.gguf$/i.test(file) && file.split("/").every(isSegment);
}

function parseHub(source: ModelSource): HubSource {
  const text = source.slice("hf:".length);
  const hash = text.indexOf("#");
  const [names, revision] = hash < 0 ? [text, undefined] : [text.slice(0, hash), text.slice(hash + 1)];
  const [user = "", second = "", ...rest] = names.split("/");
  const file = rest.length > 0 ? rest.join("/") : undefined;
  const colon = second.indexOf(":");
  const [repo, quant] = colon < 0 ? [second, undefined] : [second.slice(0, colon), second.slice(colon + 1)];

  if (!isName(user) || !isName(repo)) throw refused(source, FORMS);
  if (file !== undefined && (quant !== undefined || !isRepositoryFile(file)))
    throw refused(source, "hf:user/repo/file.gguf with the path of a file in the repository");
  if (quant !== undefined && !QUANT.test(quant)) throw refused(source, "hf:user/repo:quant, such as :Q8_0");
  if (revision !== undefined && file === undefined)
    throw refused(source, "hf:user/repo/file.gguf#revision: only a file can be asked for by its revision");
  if (revision !== undefined && !isRevision(revision)) throw refused(source, "a branch, a tag or a commit after the #");
  return { kind: "hub", source, user, repo, revision, file, quant };
}

/** `https://hub/user/repo/resolve/main/file.gguf` (or `blob`, as browsers show it). */
function hubUrl(source: ModelSource, url: URL): HubSource | undefined {
  const [, user = "", repo = "", verb = "", revision = "", ...rest] = url.pathname.split("/").map(decoded);
  const file = rest.join("/");
  const isFile = verb === "resolve" || verb === "blob";
  if (!isFile || !isName(user) || !isName(repo) || !isRevision(revision) || !isRepositoryFile(file)) return undefined;
  return {
    kind: "hub",
    source,
    user,
    repo,
    revision: revision === "main" ? undefined : revision,
    file,
    quant: undefined,
  };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

function isName(name: string): boolean {
  // two hyphens are the separator of the folders in a cache
  return NAME.test(name) && !name.includes("..") && !name.includes("--");
}

function isRevision(revision: string): boolean {
  return /^[A-Za-z0-9][A-Za-z0-9_./+@-]{0,199}$/.test(revision) && revision.split("/").every(isSegment);
}

function isSegment(segment: string): boolean {
  // a folder that begins with two dots, or a character that some system gives a meaning, is no name of a model's file
  return segment !== "" && !segment.startsWith("..") && segment !== "." && /^[^\\:*?"<>|\p{Cc}]+$/u.test(segment);
}

function refused(source: ModelSource, expected: string): InvalidOptionError {
  return new InvalidOptionError("source", expected, shownSource(source));
}
