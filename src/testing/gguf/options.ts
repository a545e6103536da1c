/** Checks of the makers' options. A wrong one is a bug of the caller: `TypeError`, naming the option. */

/** Names that every maker takes. */
const FILE_OPTIONS = ["parts", "omitTensor"];

/** Refuses names that a maker does not know, so that a typing error does not go unseen. */
export function refuseUnknownOptions(options: object, known: readonly string[]): void {
  for (const name of Object.keys(options)) {
    if (known.includes(name) || FILE_OPTIONS.includes(name)) continue;
    throw new TypeError(`Option "${name}" is not known here. Known: ${[...known, ...FILE_OPTIONS].join(", ")}.`);
  }
}

/** Refuses anything but an integer of at least `least` that is a multiple of `step`. */
export function requireInteger(name: string, value: number, least = 1, step = 1): void {
  if (Number.isSafeInteger(value) && value >= least && value % step === 0) return;
  const multiple = step === 1 ? "" : ` that is a multiple of ${step}`;
  throw new TypeError(`Option "${name}": expected an integer of at least ${least}${multiple}, received ${value}.`);
}

/** Refuses a value that is not one of the keys of `choices`; needed for callers without types. */
export function requireChoice(name: string, value: string, choices: object): void {
  if (Object.hasOwn(choices, value)) return;
  throw new TypeError(`Option "${name}": expected one of ${Object.keys(choices).join(", ")}, received ${value}.`);
}

/** Refuses a text that is missing or empty. */
export function requireText(name: string, value: unknown): void {
  if (typeof value === "string" && value.length > 0) return;
  throw new TypeError(`Option "${name}": expected a text that is not empty, received ${JSON.stringify(value)}.`);
}
