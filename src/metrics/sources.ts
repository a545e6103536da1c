import type { MetricsSnapshot, ModelManager } from "../index.js";
import type { Sample, Series } from "./series.js";

/** The managers that one registry shows, by name. */
export class Sources {
  readonly #managers = new Map<string, ModelManager>();
  #taken: ReadonlyMap<string, MetricsSnapshot> | undefined;

  get isEmpty(): boolean {
    return this.#managers.size === 0;
  }

  has(name: string): boolean {
    return this.#managers.has(name);
  }

  add(manager: ModelManager): void {
    this.#managers.set(manager.name, manager);
    this.#taken = undefined;
  }

  delete(manager: ModelManager): void {
    if (this.#managers.get(manager.name) === manager) this.#managers.delete(manager.name);
    this.#taken = undefined;
  }

  /** The values of a series now, of all managers. */
  samples<Value>({ read }: Series<Value>): Sample<Value>[] {
    return [...this.#snapshots()].flatMap(([supervisor, snapshot]) =>
      read(snapshot).map(({ labels, value }) => ({ labels: { supervisor, ...labels }, value })),
    );
  }

  /** A registry asks for all series of a scrape in one go: they come from one snapshot, which is made once. */
  #snapshots(): ReadonlyMap<string, MetricsSnapshot> {
    if (this.#taken !== undefined) return this.#taken;
    this.#taken = new Map([...this.#managers].map(([name, manager]) => [name, manager.metrics()]));
    queueMicrotask(() => {
      this.#taken = undefined;
    });
    return this.#taken;
  }
}
