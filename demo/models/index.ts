/** Models to try the library with, made at first use from the project's own documents. */
import { createHash } from "node:crypto";
import { access, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { paragraphsOf, readDocuments } from "./corpus.js";
import { makeSentenceModel } from "./sentence-model.js";
import { makeWordModel } from "./word-model.js";

/** Raise it when the makers change, so that files of an older one are not taken for theirs. */
const MAKER_VERSION = 1;
const FEWEST_WORDS = 200;
const PROJECT = fileURLToPath(new URL("../..", import.meta.url));

/** Paths of the two files. */
export interface DemoModels {
  /** Generates and chats, in whole words of the documents. */
  readonly chat: string;
  /** Embeds sentences. */
  readonly embed: string;
}

/**
 * The demonstration models of a corpus (markdown texts), made in a cache folder unless they are there. It takes a second
 * or two. Two processes may do so at once: each file appears whole, and both make the same.
 *
 * @throws Error if the corpus has too few words.
 */
export async function demoModels(cacheFolder: string, corpus?: readonly string[]): Promise<DemoModels> {
  const paragraphs = (corpus ?? (await readDocuments(PROJECT))).flatMap(paragraphsOf);
  const words = paragraphs.reduce((sum, paragraph) => sum + paragraph.split(" ").length, 0);
  if (words < FEWEST_WORDS) {
    throw new Error(`The demonstration models need a text of ${FEWEST_WORDS} words or more; this one has ${words}.`);
  }

  const key = createHash("sha256")
    .update(JSON.stringify([MAKER_VERSION, paragraphs]))
    .digest("hex")
    .slice(0, 16);
  const chat = join(cacheFolder, `demo-chat-${key}.gguf`);
  const embed = join(cacheFolder, `demo-embed-${key}.gguf`);
  await mkdir(cacheFolder, { recursive: true });
  if (!(await exists(chat))) await makeWordModel(chat, paragraphs);
  if (!(await exists(embed))) await makeSentenceModel(embed, paragraphs);
  return { chat, embed };
}

async function exists(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    () => false,
  );
}
