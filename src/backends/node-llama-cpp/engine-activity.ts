/** Whether anything is being evaluated in this process: figures that are measured meanwhile would be wrong. */

let works = 0;

/** Called by whoever begins to evaluate; returns what it calls at the end, once. */
export function beginEvaluating(): () => void {
  works++;
  return () => {
    works--;
  };
}

export function engineIsBusy(): boolean {
  return works > 0;
}
