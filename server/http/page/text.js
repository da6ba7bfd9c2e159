// An answer's text as the symbols that it was made of, grouped so that each group can be shown by itself.

const MOST_CELLS = 1e7; // of the table that places symbols; all symbols of a longer answer are one group

const spaced = (token) => token.replace(/[▁Ġ]/g, " ");

// A symbol as it is shown: blanks are visible where a symbol is nothing else, and a mark has something to stand on.
export function shown(token) {
  if (token === "</s>") return "end";
  const text = spaced(token).trim() || "␣";
  return /^\p{M}/u.test(text) ? `◌${text}` : text;
}

// True if symbols are read from the right, by the first letter among them, after marks such as "<s>".
export const isRightToLeft = (symbols) =>
  /^(<[^>]*>|\P{L})*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(symbols.join(""));

// The ends of characters as readers see them: a letter with its marks, or an emoji of several parts, is one.
export function endsOfCharacters(text) {
  const segments = new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text);
  return new Set(Array.from(segments, ({ index, segment }) => index + segment.length));
}

// Where each word begins in the text, in order, such that the words cover the most of it; -1 for a word that it lacks.
function placesOf(words, text) {
  if (words.length * text.length > MOST_CELLS) return words.map(() => -1);
  // The number of characters from each place on that a word and those after it cover.
  const covered = [...words, ""].map(() => new Uint16Array(text.length + 1));
  for (let index = words.length - 1; index >= 0; index--) {
    const [word, after] = [words[index], covered[index + 1]];
    let most = 0;
    for (let at = text.length; at >= 0; at--) {
      if (text.startsWith(word, at)) most = word.length + after[at + word.length];
      covered[index][at] = Math.max(most, after[at]);
    }
  }
  let at = 0;
  return words.map((word, index) => {
    if (covered[index][at] === covered[index + 1][at]) return -1;
    const start = text.indexOf(word, at);
    at = start + word.length;
    return start;
  });
}

// The groups {first, last, before, text} of an answer's symbols, and the rest of its text after them. A group has the
// indices of its first and last symbol, its own text, and the text between it and the group before: together they are the
// answer's text. A symbol that begins within a character is in the group of the symbol before it. Symbols that the text does
// not have as they are, such as bytes and stand-ins, are the group of what it has in their place.
export function grouped(text, tokens) {
  const begins = endsOfCharacters(text).add(0);
  const words = tokens.map((token) => spaced(token).trim() || spaced(token));
  const groups = [];
  let at = 0;
  let first = 0;

  function add(last, start, end) {
    const before = text.slice(at, start);
    const own = text.slice(start, end);
    if (!before && groups.length && !begins.has(start)) {
      Object.assign(groups.at(-1), { last, text: groups.at(-1).text + own });
    } else groups.push({ first, last, before, text: own });
    at = end;
    first = last + 1;
  }

  // Places the symbols before this index, which the text lacks, on what it has before `end`.
  function fill(index, end) {
    const inner = text.slice(at, end).trim();
    const start = text.indexOf(inner, at);
    if (index === first) return;
    if (inner) add(index - 1, start, start + inner.length);
    else if (groups.length) {
      groups.at(-1).last = index - 1;
      first = index;
    }
  }

  placesOf(words, text).forEach((start, index) => {
    if (start < 0) return;
    fill(index, start);
    add(index, start, start + words[index].length);
  });
  fill(tokens.length, text.length);
  return { groups, rest: text.slice(at) };
}
