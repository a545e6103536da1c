import { describe, expect, it } from "vitest";
import { parseSource } from "../../../../src/backends/node-llama-cpp/sources/source.js";
import { shownSource } from "../../../../src/model.js";

const endpoint = new URL("https://hub.example");
const parse = (source: string) => parseSource(source, endpoint);

describe("parseSource", () => {
  it.each([
    ["hf:user/repo", {}],
    ["hf:user/repo:Q8_0", { quant: "Q8_0" }],
    ["hf:user/repo/file.gguf", { file: "file.gguf" }],
    ["hf:user/repo/some/where/file.gguf#v1.0", { file: "some/where/file.gguf", revision: "v1.0" }],
    ["hf:user/repo/file.gguf#refs/pr/1", { file: "file.gguf", revision: "refs/pr/1" }],
    ["https://hub.example/user/repo/resolve/main/file.gguf?download=true", { file: "file.gguf" }],
    ["https://hub.example/user/repo/blob/v1.0/a%20b.gguf", { file: "a b.gguf", revision: "v1.0" }],
  ])("knows %s as a file of the hub", (source, expected) => {
    const { source: kept, ...parsed } = { source, ...parse(source) };

    expect(kept).toBe(source);
    expect(parsed).toEqual({
      kind: "hub",
      user: "user",
      repo: "repo",
      file: undefined,
      quant: undefined,
      revision: undefined,
      ...expected,
    });
  });

  it.each(["model.gguf", "/models/model.gguf", "../model.gguf", String.raw`C:\models\model.gguf`, "C:/model.gguf"])(
    "leaves the path %s alone",
    (source) => {
      expect(parse(source)).toEqual({ kind: "path" });
    },
  );

  it.each(["https://elsewhere.example/model.gguf", "http://127.0.0.1:8080/model.gguf", "http://localhost/a"])(
    "knows the URL %s",
    (source) => {
      expect(parse(source)).toMatchObject({ kind: "url", url: new URL(source) });
    },
  );

  it.each([
    "hf:",
    "hf:user",
    "hf:user/",
    "hf:/repo",
    "hf:/etc/passwd.gguf",
    "hf:../repo/file.gguf",
    "hf:user/..",
    "hf:us--er/repo",
    "hf:user/repo/../../../file.gguf",
    "hf:user/repo/./file.gguf",
    "hf:user/repo//file.gguf",
    String.raw`hf:user/repo/..\file.gguf`,
    "hf:user/repo/C:file.gguf",
    "hf:user/repo/file.gguf\n",
    "hf:user/repo/file.bin",
    "hf:user/repo:Q8_0/file.gguf",
    "hf:user/repo:",
    "hf:user/repo:../x",
    "hf:user/repo:Q8_0#main",
    "hf:user/repo#main",
    "hf:user/repo/file.gguf#",
    "hf:user/repo/file.gguf#../../x",
    "http://elsewhere.example/model.gguf",
    "http://127.0.0.1.elsewhere.example/model.gguf",
    "ftp://elsewhere.example/model.gguf",
    "file:///model.gguf",
    "https://",
  ])("refuses %j", (source) => {
    expect(() => parse(source)).toThrow(
      expect.objectContaining({ code: "invalid_option", option: "source", retryable: false }),
    );
  });

  it("refuses a user in a URL, and shows neither that nor the query", () => {
    expect(() => parse("https://me:secret@elsewhere.example/m.gguf?key=secret")).toThrow(
      'Option "source": expected a URL without a user name or password, received "https://elsewhere.example/m.gguf".',
    );
  });
});

describe("shownSource", () => {
  it.each([
    ["https://a:b@host/m.gguf?key=1#x", "https://host/m.gguf"],
    ["https://a@b:c@host/m.gguf", "https://host/m.gguf"],
    ["HTTP://host?key=1", "HTTP://host"],
    ["hf:user/repo/file.gguf#v1", "hf:user/repo/file.gguf#v1"],
    ["./a?b#c.gguf", "./a?b#c.gguf"],
  ])("shows %s as %s", (source, shown) => {
    expect(shownSource(source)).toBe(shown);
  });
});
