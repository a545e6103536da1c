/** What a text says about its words: which follows which, and which belong together. */
import { SPACE, ugmVocabulary, type Vocabulary } from "../../src/testing/gguf/vocabulary.js";
import { piecesOf } from "./corpus.js";
import { byFrequency, PairCounts } from "./pair-counts.js";

/** Most frequent words and marks to know; bounds the size of the file. */
const MOST_WORDS = 2000;
/** Signs, and marks that come in pairs: a model that forgets so fast would never close what it opened. */
const UNWANTED = /[^\p{L}\p{N}\s.,;:!?'’_/%@-]/gu;
/** They stand in every chat, whatever it is about. */
const CHAT_ROLES = new Set(["system", "user", "assistant"]);
/** Words this close before another one are its topic. */
const TOPIC_WINDOW = 20;

export interface WordStatistics {
  readonly vocabulary: Vocabulary;
  /** Token and the one after it. */
  readonly next: PairCounts;
  /** Token and the second one after it. */
  readonly afterNext: PairCounts;
  /** Token (by its {@link topics} number) and the ones after it in its paragraph. */
  readonly topicOf: PairCounts;
  /** By token: the token that stands for all spellings of the word. */
  readonly topics: readonly number[];
  /** By token: 0 for words that are everywhere, to 1 for words of a single paragraph. */
  readonly importance: readonly number[];
  /** By token: how often it occurs. */
  readonly frequencies: readonly number[];
}

export function countWords(paragraphs: readonly string[]): WordStatistics {
  const texts = paragraphs.map((paragraph) => piecesOf(paragraph.replace(UNWANTED, "")));
  const vocabulary = ugmVocabulary(byFrequency(texts.flat()).slice(0, MOST_WORDS));
  const topics = oneTokenPerWord(vocabulary);
  const end = vocabulary.id("</s>");
  // a word that is too rare to be known interrupts the text
  const sequences = texts.map((pieces) => [...pieces.map((piece) => idOf(vocabulary, piece)), end]);

  const next = new PairCounts();
  const afterNext = new PairCounts();
  const topicOf = new PairCounts();
  const frequencies = vocabulary.tokens.map(() => 0);
  const paragraphsWith = vocabulary.tokens.map(() => 0);
  for (const tokens of sequences) {
    tokens.forEach((token, i) => {
      if (token === undefined) return;
      frequencies[token] = (frequencies[token] ?? 0) + 1;
      const [before, last] = [tokens[i - 2], tokens[i - 1]];
      if (last !== undefined) next.add(last, token);
      if (last !== undefined && before !== undefined) afterNext.add(before, token);
      for (const earlier of tokens.slice(Math.max(0, i - TOPIC_WINDOW), i)) {
        if (earlier !== undefined) topicOf.add(topics[earlier] ?? earlier, token);
      }
    });
    for (const topic of new Set(tokens.map((token) => topics[token ?? end] ?? end))) {
      paragraphsWith[topic] = (paragraphsWith[topic] ?? 0) + 1;
    }
  }
  beginAnew(vocabulary, next, sequences, frequencies, end);

  const most = Math.log(1 + texts.length);
  const importance = topics.map((topic) => {
    const paragraphsWithIt = paragraphsWith[topic] ?? 0;
    const word = (vocabulary.tokens[topic] ?? "").replace(SPACE, "").toLowerCase();
    const tells = /\p{L}{3}/u.test(word) && !CHAT_ROLES.has(word);
    return tells && paragraphsWithIt > 0 ? Math.log((1 + texts.length) / paragraphsWithIt) / most : 0;
  });
  return { vocabulary, next, afterNext, topicOf, topics, importance, frequencies };
}

/** Whatever the text never goes on from (unknown words, the line break before a chat's answer) begins a new paragraph. */
function beginAnew(
  { tokens }: Vocabulary,
  next: PairCounts,
  sequences: readonly (number | undefined)[][],
  frequencies: readonly number[],
  end: number,
): void {
  const firsts = sequences.flatMap(([first]) => (first === undefined ? [] : [first]));
  const capitals = firsts.filter((first) => /^\u2581\p{Lu}/u.test(tokens[first] ?? ""));
  frequencies.forEach((frequency, token) => {
    if (frequency > 0 && token !== end) return;
    for (const first of capitals.length > 0 ? capitals : firsts) next.add(token, first);
  });
}

function idOf(vocabulary: Vocabulary, piece: string): number | undefined {
  const token = piece.replaceAll(" ", SPACE);
  return vocabulary.has(token) ? vocabulary.id(token) : undefined;
}

/** With and without a space, upper and lower case are one word; the spelling that comes first stands for all. */
function oneTokenPerWord({ tokens }: Vocabulary): number[] {
  const byWord = new Map<string, number>();
  return tokens.map((token, id) => {
    const word = token.replaceAll(SPACE, "").toLowerCase();
    const first = byWord.get(word) ?? id;
    byWord.set(word, first);
    return first;
  });
}
