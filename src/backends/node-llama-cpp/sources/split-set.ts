/** The naming rule of llama.cpp for a model that is split over several files. */
const SPLIT_NAME = /^([^]*)-(\d{5})-of-(\d{5})\.gguf$/;

/** All files of the set that this file (a path or the path of a URL) is a part of; a file that stands alone is its own set. */
export function partsOf(file: string): [string, ...string[]] {
  const [, stem, own, count] = SPLIT_NAME.exec(file) ?? [];
  if (stem === undefined || Number(count) < 1 || Number(own) < 1 || Number(own) > Number(count)) return [file];
  const part = (number: number) => `${stem}-${String(number).padStart(5, "0")}-of-${count}.gguf`;
  return [part(1), ...Array.from({ length: Number(count) - 1 }, (_, index) => part(index + 2))];
}
