// An answer's text as the symbols that it was made of, grouped so that each group can be shown by itself.

const plain = (token) => token.replace(/[▁Ġ]/g, " ").trim();

// A symbol as it is shown: blanks are visible where a symbol is nothing else, and a mark has something to stand on.
export function shown(token) {
  if (token === "</s>") return "end";
  const text = plain(token) || "␣";
  return /^\p{M}/u.test(text) ? `◌${text}` : text;
}

// True if symbols are read from the right, by the first letter among them.
export const isRightToLeft = (symbols) =>
  /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(symbols.join(""));

// The ends of characters as readers see them: a letter with its marks, or an emoji of several parts, is one.
export function endsOfCharacters(text) {
  const segments = new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text);
  return new Set(Array.from(segments, ({ index, segment }) => index + segment.length));
}

// The groups {first, last, before, text} of an answer's symbols, and the rest of its text after them. A group has the
// indices of its first and last symbol, its own text, and the text between it and the group before. A symbol that begins
// within a character is in the group of the symbol before it. Symbols that the text does not have as they are, such as
// bytes, are the group of what it has in their place.
export function grouped(text, tokens) {
  const begins = endsOfCharacters(text).add(0);
  const groups = [];
  let at = 0;
  let missing = [];

  function place(end) {
    const between = text.slice(at, end);
    const inner = between.trim();
    if (missing.length && inner) {
      const start = at + between.indexOf(inner);
      groups.push({ first: missing[0], last: missing.at(-1), before: text.slice(at, start), text: inner });
      at = start + inner.length;
    } else {
      for (const index of missing) {
        groups.push({ first: index, last: index, before: index ? " " : "", text: shown(tokens[index]) });
      }
    }
    missing = [];
  }

  tokens.forEach((token, index) => {
    const word = plain(token);
    const start = word ? text.indexOf(word, at) : -1;
    if (start < 0) {
      missing.push(index);
      return;
    }
    place(start);
    if (start === at && groups.length && !begins.has(start)) {
      Object.assign(groups.at(-1), { last: index, text: groups.at(-1).text + word });
    } else {
      groups.push({ first: index, last: index, before: text.slice(at, start), text: word });
    }
    at = start + word.length;
  });
  place(text.length);
  return { groups, rest: text.slice(at) };
}
