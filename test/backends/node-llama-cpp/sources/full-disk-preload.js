/** Makes each write of this thread fail as on a full disk; the code is in the environment. */
import { open } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const handle = await open(fileURLToPath(import.meta.url));
await handle.close();
Object.getPrototypeOf(handle).write = async () => {
  throw Object.assign(new Error("no write in this test"), { code: process.env["TEST_WRITE_ERROR"] });
};
