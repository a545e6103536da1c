/** Unlike `Promise.all` it waits for the rest when one fails: only then may the owner dispose what they work on. */
export async function allSettled(works: readonly Promise<void>[]): Promise<void> {
  for (const result of await Promise.allSettled(works)) if (result.status === "rejected") throw result.reason;
}
