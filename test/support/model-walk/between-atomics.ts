import { vi } from "vitest";

/** Does `other` once, after the `at`th atomic load or addition of `work`. */
export function betweenAtomics(at: number, other: () => void, work: () => void): void {
  const { load, add } = Atomics;
  let count = 0;
  const step = () => {
    if (++count !== at) return;
    restore();
    other();
  };
  const loads = vi.spyOn(Atomics, "load").mockImplementation((words, index) => {
    const value = load(words, index);
    step();
    return value;
  });
  const additions = vi.spyOn(Atomics, "add").mockImplementation((words, index, by) => {
    const value = add(words, index, by);
    step();
    return value;
  });
  const restore = () => {
    loads.mockRestore();
    additions.mockRestore();
  };
  try {
    work();
  } finally {
    restore();
  }
}
