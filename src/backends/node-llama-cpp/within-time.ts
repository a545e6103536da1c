/** Bounds code of which nobody knows whether it ends: a chat template is a program that came with a file. */
import vm from "node:vm";

let context: vm.Context | undefined;

/**
 * Runs it here and now, as a call would; after `limitMs` whatever runs is ended where it is.
 * @throws what it throws, or an error that says it took too long
 */
export function withinTime<Result>(limitMs: number, run: () => Result): Result {
  let result: { readonly value: Result } | undefined;
  context ??= vm.createContext({});
  context["run"] = () => {
    result = { value: run() };
  };
  try {
    vm.runInContext("run()", context, { timeout: limitMs });
  } finally {
    delete context["run"];
  }
  if (result === undefined) throw new Error("It ended without a result");
  return result.value;
}

/** The error comes from the other realm, where `Error` is another class. */
export function isOutOfTime(error: unknown): boolean {
  return (
    typeof error === "object" && error !== null && "code" in error && error.code === "ERR_SCRIPT_EXECUTION_TIMEOUT"
  );
}
