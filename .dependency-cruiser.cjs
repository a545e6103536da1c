// Who may import whom. The table with the reasons is in CONTRIBUTING.md.
const never = (name, from, to, comment) => ({ name, severity: "error", comment, from, to });
const src = (path) => ({ path: `^src/${path}` });

module.exports = {
  forbidden: [
    never("no-cycles", {}, { circular: true }, "A cycle hides which part rests on which."),
    never(
      "no-orphans",
      { orphan: true, pathNot: "^src/(index|testing/index|testing/gguf/index)\\.ts$" },
      {},
      "Nothing imports it: delete it.",
    ),
    never("domain-words-import-nothing", src("model\\.ts$"), {}, "The words of the domain rest on nothing."),
    never(
      "leaves-import-words-only",
      src("(errors|inference|backends/backend|metrics/snapshot)\\.ts$"),
      { pathNot: "^src/(model|inference)\\.ts$" },
      "Errors and the port rest on the domain words.",
    ),
    never(
      "table-rests-on-words-and-port",
      src("table/"),
      { pathNot: "^src/(table/|model\\.ts|errors\\.ts|backends/backend\\.ts)" },
      "The hot path: no xstate, manager, timers or IO.",
    ),
    never(
      "pure-files",
      src(
        "(manager/(decide|decide-fact|decision|backoff|profile)\\.ts|manager/metrics/.+|table/expiry\\.ts|backends/node-llama-cpp/(scheduler/.+|layout/layout)\\.ts|manager/memory/(budget|claims|eviction|placement|plan|room|size)\\.ts|supervisor/restart-intensity\\.ts)$",
      ),
      { path: "(node_modules|^node:|^(fs|os|path|timers)$)" },
      "Decisions are pure: no xstate, node modules, clocks or random.",
    ),
    never(
      "backends-know-the-port-only",
      src("backends/[^/]+/"),
      { path: "^src/", pathNot: "^src/(backends/|model\\.ts|errors\\.ts|inference\\.ts|process-limits\\.ts)" },
      "A backend must work without this manager.",
    ),
    never(
      "backends-do-not-know-each-other",
      { path: "^src/backends/([^/]+)/" },
      { path: "^src/backends/[^/]+/", pathNot: "^src/backends/$1/" },
      "One folder per backend.",
    ),
    never(
      "engine-in-its-folder",
      { path: "^src/", pathNot: "^src/backends/node-llama-cpp/" },
      { path: "node_modules/node-llama-cpp" },
      "node-llama-cpp is one engine among others, and costs 0.3 s to import.",
    ),
    never(
      "manager-knows-no-supervisor-and-no-engine",
      src("manager/"),
      { path: "^src/(supervisor|testing|backends/[^/]+/)" },
      "The manager is below the supervisor and knows engines by the port.",
    ),
    never(
      "supervisor-is-not-testing",
      src("supervisor/"),
      { path: "^src/testing" },
      "Production code does not need the fake.",
    ),
    never(
      "testing-rests-on-the-port",
      src("testing/"),
      { path: "^src/", pathNot: "^src/(testing/|model\\.ts|errors\\.ts|inference\\.ts|backends/backend\\.ts)" },
      "The fake is a backend like any other.",
    ),
    never(
      "metrics-adapter-rests-on-the-public-surface",
      { path: "^src/metrics/", pathNot: "^src/metrics/snapshot\\.ts$" },
      { pathNot: "(^src/metrics/|^src/index\\.ts$|node_modules/prom-client/)" },
      "What it does, an application could do for another registry.",
    ),
    never(
      "prom-client-in-its-folder",
      { path: "^src/", pathNot: "^src/metrics/" },
      { path: "(node_modules/prom-client|^src/metrics/(?!snapshot\\.ts$))" },
      "It is an optional peer: the rest works without it.",
    ),
    never(
      "xstate-in-the-tree",
      { path: "^src/", pathNot: "^src/(supervisor/|manager/manager-machine\\.ts|testing/simulated-clock\\.ts)" },
      { path: "node_modules/xstate" },
      "Actors stay internal.",
    ),
  ],
  options: {
    parser: "swc",
    tsPreCompilationDeps: true,
    doNotFollow: { path: "node_modules" },
    enhancedResolveOptions: {
      exportsFields: ["exports"],
      conditionNames: ["import", "types", "default"],
      extensions: [".ts", ".js"],
    },
  },
};
