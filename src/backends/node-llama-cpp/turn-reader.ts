/** Reads a chat's turn from its tokens: their text, that of special tokens apart, and what the turn is made of. */
import type { LlamaModel, Token } from "node-llama-cpp";
import type { GenerationPart } from "../../inference.js";
import { CallGrammars, type ChatTools } from "./call-grammars.js";
import { ChatTurn, type TurnPiece } from "./chat-turn.js";
import type { TokenText } from "./text.js";
import type { TurnFormat } from "./turn-marks.js";

export type TurnPart = Exclude<GenerationPart, { readonly type: "finish" }> | { readonly type: "end" };

/** The text of each special token of a model, or `undefined` for the other ones, which have text anyway. */
const specialTexts = new WeakMap<LlamaModel, Map<Token, string | undefined>>();

export class TurnReader {
  /** What the model may say next. */
  readonly grammars: CallGrammars;
  readonly #turn: ChatTurn;
  readonly #model: LlamaModel;
  readonly #specialTexts: Map<Token, string | undefined>;
  readonly #requestId: string;
  #calls = 0;

  private constructor(model: LlamaModel, turn: ChatTurn, grammars: CallGrammars, requestId: string) {
    this.#model = model;
    this.#turn = turn;
    this.grammars = grammars;
    this.#requestId = requestId;
    this.#specialTexts = specialTexts.get(model) ?? new Map<Token, string | undefined>();
    specialTexts.set(model, this.#specialTexts);
  }

  /** @throws InvalidOptionError of `tools.<index>.parameters`. */
  static async make(
    model: LlamaModel,
    turn: ChatTools & { readonly format: TurnFormat },
    requestId: string,
  ): Promise<TurnReader> {
    const grammars = await CallGrammars.make(model, turn.format, turn);
    const tools = turn.tools.map(({ name, parameters }) => ({ name, takesNothing: parameters === undefined }));
    return new TurnReader(model, new ChatTurn(turn.format, tools, grammars), grammars, requestId);
  }

  read(token: Token, text: TokenText): TurnPart[] {
    const special = this.#specialText(token);
    if (special === undefined) return this.#turn.push(text.push(token)).map((piece) => this.#part(piece));
    // a special token breaks a character off; it has no text of its own, but decides about the next one's space
    const pieces = [...this.#turn.push(text.end()), ...this.#turn.push(special, true)];
    text.push(token);
    return pieces.map((piece) => this.#part(piece));
  }

  /** No more tokens come. */
  end(text: TokenText, isCut: boolean): TurnPart[] {
    const pieces = [...this.#turn.push(text.end()), ...this.#turn.end(isCut)];
    return pieces.map((piece) => this.#part(piece));
  }

  #part(piece: TurnPiece): TurnPart {
    if (piece.type !== "call") return piece;
    const id = `call_${this.#requestId}_${this.#calls++}`;
    return { type: "tool-call", toolCall: { id, name: piece.name, arguments: piece.arguments } };
  }

  #specialText(token: Token): string | undefined {
    if (!this.#specialTexts.has(token)) {
      const isSpecial = this.#model.isSpecialToken(token);
      this.#specialTexts.set(token, isSpecial ? this.#model.detokenize([token], true) : undefined);
    }
    return this.#specialTexts.get(token);
  }
}
