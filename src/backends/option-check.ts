/** Checks a value against a schema and says in our words what is wrong with it. */
import leven from "leven";
import { z } from "zod";
import { InvalidOptionError } from "../errors.js";

/** Returns the value if it fits the schema; otherwise throws `invalid_option` for the first thing that is wrong. */
export function check<T>(schema: z.ZodType<T>, value: unknown, name: string): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const path = issue?.path ?? [];
  if (issue?.code === "unrecognized_keys") {
    const key = issue.keys[0] ?? "";
    throw new InvalidOptionError(
      [...(name === "options" ? [] : [name]), ...path, key].join("."),
      nearest(key, knownKeys(schema, path)),
      valueAt(value, [...path, key]),
    );
  }
  // what is not an option is named with its argument: messages.0.role
  const option = [...(name === "options" ? [] : [name]), ...path].join(".") || name;
  throw new InvalidOptionError(option, issue?.message ?? "another value", valueAt(value, path));
}

function valueAt(value: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (inner, key) => (typeof inner === "object" && inner !== null ? Reflect.get(inner, key) : undefined),
    value,
  );
}

/** The option names that would have been right at `path`; only objects and arrays of objects have any. */
function knownKeys(schema: z.ZodType, path: readonly PropertyKey[]): string[] {
  let inner: z.core.$ZodType = schema;
  for (const key of path) {
    if (inner instanceof z.ZodOptional) inner = inner.unwrap();
    if (inner instanceof z.ZodArray) inner = inner.element;
    else if (inner instanceof z.ZodObject) inner = inner.shape[String(key)] ?? inner;
  }
  return inner instanceof z.ZodObject ? Object.keys(inner.shape) : [];
}

export function nearest(key: string, known: readonly string[]): string {
  const best = known.toSorted((a, b) => leven(key, a) - leven(key, b))[0];
  if (best === undefined) return "no such name";
  return leven(key, best) <= Math.max(2, key.length / 3)
    ? `a known name (did you mean "${best}"?)`
    : `a known name (${known.join(", ")})`;
}
