// placeholder until the backend lands here
import type { Backend } from "../backend.js";
export function nodeLlamaCpp(): Backend {
  throw new TypeError("not built yet");
}
