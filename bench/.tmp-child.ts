import { fork } from "node:child_process";
const c = fork("bench/dispose-under-load-child.ts", [process.argv[2]!, "/tmp/m/tiny.gguf", process.argv[3]!, "1"], { execArgv: ["--import", "tsx"], stdio: ["ignore", "inherit", process.argv[4] === "pipe" ? "pipe" : "inherit", "ipc"] });
const t0 = performance.now();
c.on("message", (m) => console.log("msg", m, performance.now() - t0));
c.on("exit", (code, s) => { console.log("exit", code, s, performance.now() - t0); });
setTimeout(() => { console.log("still alive, pid", c.pid); c.kill("SIGKILL"); }, 15000).unref();
