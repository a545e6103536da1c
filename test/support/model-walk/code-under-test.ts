import { readFile } from "node:fs/promises";
import path from "node:path";
import { createServer } from "vite";
import type { ModelSupervisor } from "../../../src/index.js";
import type { Executor } from "../../../src/manager/executor.js";
import type { temporaryChildrenMachine } from "../../../src/supervisor/temporary-children.js";

/** The parts of one copy of the sources that a walk takes hold of. */
export interface CodeUnderTest {
  readonly ModelSupervisor: typeof ModelSupervisor;
  readonly Executor: typeof Executor;
  readonly temporaryChildrenMachine: typeof temporaryChildrenMachine;
}

/** A fault that is planted: in this file of `src`, this text becomes that one. */
export interface Fault {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

const SOURCES = path.resolve(import.meta.dirname, "../../../src");

/** A copy of the sources of its own, with these faults. Throws where the text that a fault replaces is not there once. */
export async function copyOfSources(...faults: readonly Fault[]): Promise<CodeUnderTest> {
  const planted = new Map(
    await Promise.all(
      faults.map(async ({ file, from, to }) => {
        const text = await readFile(path.join(SOURCES, file), "utf8");
        const count = text.split(from).length - 1;
        if (count !== 1) throw new Error(`"${from}" is ${count} times in ${file}, so no fault can be planted there.`);
        return [path.join(SOURCES, file), text.replace(from, () => to)] as const;
      }),
    ),
  );
  const server = await createServer({
    configFile: false,
    root: path.dirname(SOURCES),
    appType: "custom",
    logLevel: "silent",
    server: { middlewareMode: true, hmr: false, ws: false, watch: null },
    optimizeDeps: { noDiscovery: true },
    plugins: [{ name: "planted-faults", enforce: "pre", load: (id) => planted.get(id) }],
  });
  try {
    const load = (file: string) => server.ssrLoadModule(path.join(SOURCES, file));
    const copy = {
      ...(await load("index.ts")),
      ...(await load("manager/executor.ts")),
      ...(await load("supervisor/temporary-children.ts")),
    };
    return copy as unknown as CodeUnderTest;
  } finally {
    await server.close();
  }
}
