/** Tells where a JSON object ends, while its text still comes. */
export class JsonEnd {
  #depth = 0;
  #isInText = false;
  #isEscaped = false;
  #read = 0;
  #end: number | undefined;

  /** `text`: everything since the object's brace, longer each time. */
  find(text: string): number | undefined {
    for (; this.#end === undefined && this.#read < text.length; this.#read++) {
      const character = text.charAt(this.#read);
      if (this.#isInText) {
        if (this.#isEscaped) this.#isEscaped = false;
        else if (character === "\\") this.#isEscaped = true;
        else if (character === '"') this.#isInText = false;
        continue;
      }
      if (character === '"') this.#isInText = true;
      else if (character === "{" || character === "[") this.#depth++;
      else if (character === "}" || character === "]") {
        this.#depth--;
        if (this.#depth <= 0) this.#end = this.#read + 1;
      }
    }
    return this.#end;
  }
}
