/** What checks of options are put together from: kinds of values, with how to say what was expected. */
import { z } from "zod";
import { isSize } from "./memory/size.js";

export const object = <Shape extends z.ZodRawShape>(shape: Shape) => z.strictObject(shape, { error: "an object" });
export const whole = (min: number, max = Number.MAX_SAFE_INTEGER) =>
  z.custom<number>(
    (value) => Number.isSafeInteger(value) && Number(value) >= min && Number(value) <= max,
    max === Number.MAX_SAFE_INTEGER ? `a whole number, at least ${min}` : `a whole number from ${min} to ${max}`,
  );
export const number = (min: number, max: number) =>
  z.custom<number>(
    (value) => typeof value === "number" && value >= min && value <= max,
    `a number from ${min} to ${max}`,
  );
export const flag = z.boolean({ error: "true or false" });
export const choice = <const Name extends string>(...names: Name[]) =>
  z.enum(names, { error: `one of ${names.map((name) => `"${name}"`).join(", ")}` });
export const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
export const instance = <T>(check: (value: unknown) => value is T, expected: string) => z.custom<T>(check, expected);
export const hasMethods = (value: unknown, ...names: string[]) =>
  typeof value === "object" && value !== null && names.every((name) => typeof Reflect.get(value, name) === "function");

/** The longest time that timers take; a longer one would fire at once. */
export const MAX_DELAY_MS = 2 ** 31 - 1;
export const milliseconds = z.custom<number>(
  (value) => typeof value === "number" && value >= 0 && (value <= MAX_DELAY_MS || value === Infinity),
  `milliseconds from 0 to ${MAX_DELAY_MS}, or Infinity`,
);
export const signal = instance((value): value is AbortSignal => value instanceof AbortSignal, "an AbortSignal");
export const size = z.custom<number | `${number}MiB`>(
  isSize,
  'bytes as a number of at least 0, or a size such as "512MiB"',
);
