/**
 * What was found out about files, for as long as somebody holds it and the files stay what they were.
 *
 * A header with a large vocabulary takes some hundred milliseconds of the event loop, in which no stream of another model
 * moves: a model that is loaded again and again is read once, since its row in the table remembers it.
 */
import { stat } from "node:fs/promises";

export class CheckedFiles<Findings extends object> {
  readonly #known = new Map<string, { readonly findings: WeakRef<Findings>; readonly stamp: string }>();
  readonly #forgotten = new FinalizationRegistry<string>((key) => {
    if (this.#known.get(key)?.findings.deref() === undefined) this.#known.delete(key);
  });

  recall(key: string, stamp: string): Findings | undefined {
    const found = this.#known.get(key);
    return found?.stamp === stamp ? found.findings.deref() : undefined;
  }

  /** `stamp`: of the files before they were read. */
  remember(key: string, stamp: string, findings: Findings): void {
    this.#known.set(key, { findings: new WeakRef(findings), stamp });
    this.#forgotten.register(findings, key);
  }
}

/** What tells one state of files from another; `undefined` where one of them cannot be looked at. */
export async function stampOf(files: readonly string[]): Promise<string | undefined> {
  try {
    const stats = await Promise.all(files.map((file) => stat(file)));
    return stats.map(({ size, mtimeMs, ctimeMs, ino }) => [size, mtimeMs, ctimeMs, ino].join(" ")).join("\n");
  } catch {
    return undefined; // whoever reads them says why
  }
}
