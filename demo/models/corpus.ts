/** The text that the demonstration models are made from: the project's own documents, without what is not prose. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";

const SKIPPED_FOLDERS = new Set(["node_modules", "dist", "coverage"]);

/** All markdown files below a folder, in an order that does not depend on the machine. */
export async function readDocuments(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true });
  const texts = await Promise.all(
    entries
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))
      .map(async (entry): Promise<string[]> => {
        const path = join(folder, entry.name);
        if (entry.isFile() && entry.name.endsWith(".md")) return [await readFile(path, "utf8")];
        const wanted = entry.isDirectory() && !entry.name.startsWith(".") && !SKIPPED_FOLDERS.has(entry.name);
        return wanted ? readDocuments(path) : [];
      }),
  );
  return texts.flat();
}

/** The paragraphs of a markdown text as plain prose: no code, tables, headings, markup, or addresses. */
export function paragraphsOf(markdown: string): string[] {
  return markdown
    .replaceAll("\r", "")
    .replace(/^(```|~~~)[^]*?^\1.*$/gm, "\n\n")
    .replace(/<!--[^]*?-->/g, " ")
    .replace(/^\s*(\||#|---|===).*$/gm, "\n")
    .replace(/^\s*(?:[-*+>]|\d+[.)])\s+/gm, "\n\n")
    .replace(/!\[[^\]]*\]\([^)]*\)/g, " ")
    .replace(/\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/<?https?:\/\/[^\s>)]+>?/g, " ")
    .replace(/[`*]|<\/?[a-z][^>]*>/gi, "")
    .split(/\n\s*\n/)
    .map((paragraph) => paragraph.replace(/\s+/g, " ").trim())
    .filter((paragraph) => /\p{L}.*\p{L}/u.test(paragraph));
}

/** Words and marks of a paragraph, each with the space before it, so that joined they are the paragraph again. */
export function piecesOf(paragraph: string): string[] {
  return ` ${paragraph}`.match(/ ?(?:[\p{L}\p{N}_]+(?:[-'’./@][\p{L}\p{N}_]+)*|\S)/gu) ?? [];
}

/** Sentences of a paragraph as lower-case words. */
export function sentencesOf(paragraph: string): string[][] {
  return paragraph
    .split(/(?<=[.!?:;])\s+/)
    .map((sentence) => sentence.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [])
    .filter((words) => words.length > 1);
}
