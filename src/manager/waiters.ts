import type { Life } from "./protocol.js";
import { incarnationKey } from "../table/model-table.js";

interface Waiter<T> {
  readonly who: T;
  readonly ticket: symbol | undefined;
}

/** Those who wait for something to happen to one life of one model. Each is taken once, or withdraws. */
export class Waiters<T> {
  readonly #waiting = new Map<string, { readonly life: Life; readonly waiters: Waiter<T>[] }>();

  add(life: Life, who: T, ticket?: symbol): void {
    const key = incarnationKey(life.id, life.incarnation);
    const group = this.#waiting.get(key) ?? { life, waiters: [] };
    group.waiters.push({ who, ticket });
    this.#waiting.set(key, group);
  }

  of(life: Life): readonly T[] {
    return this.#waiting.get(incarnationKey(life.id, life.incarnation))?.waiters.map(({ who }) => who) ?? [];
  }

  /** Those who wait here for one life wait there for another. */
  move(from: Life, there: Waiters<T>, to: Life): void {
    const key = incarnationKey(from.id, from.incarnation);
    const group = this.#waiting.get(key);
    this.#waiting.delete(key);
    for (const { who, ticket } of group?.waiters ?? []) there.add(to, who, ticket);
  }

  /** Removes and returns everyone who waits for this life. */
  take(life: Life): T[] {
    const key = incarnationKey(life.id, life.incarnation);
    const group = this.#waiting.get(key);
    this.#waiting.delete(key);
    return group?.waiters.map(({ who }) => who) ?? [];
  }

  /** Removes one of them. Returns the life if nobody waits for it any more. */
  withdraw(ticket: symbol): Life | undefined {
    for (const [key, { life, waiters }] of this.#waiting) {
      const index = waiters.findIndex((waiter) => waiter.ticket === ticket);
      if (index === -1) continue;
      waiters.splice(index, 1);
      if (waiters.length > 0) return undefined;
      this.#waiting.delete(key);
      return life;
    }
    return undefined;
  }
}
