/** Whether anything is being evaluated in this process: figures that are measured meanwhile would be wrong. */

let works = 0;

/** Runs something that evaluates. */
export async function evaluating<Result>(work: () => Promise<Result>): Promise<Result> {
  works++;
  try {
    return await work();
  } finally {
    works--;
  }
}

export function engineIsBusy(): boolean {
  return works > 0;
}
