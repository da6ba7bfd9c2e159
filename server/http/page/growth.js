// The confidence of the model as its text grows: the text's beginnings, each answered separately. A vector of fixed size has
// to hold ever more; attention looks at the symbols themselves.

import { generateMany } from "./api.js";
import { html } from "./dom.js";
import { counted, share } from "./numbers.js";
import { endsOfCharacters } from "./text.js";

const NUM_LENGTHS = 12;
const FEW_WORDS = 4; // a text of fewer grows by characters, unless words are tokens

// The beginnings of a text, at even distances, and the whole text.
function beginnings(whole, takesTokens) {
  const text = whole.trim();
  const words = [...text.matchAll(/\S+/g)].map(({ index, 0: word }) => index + word.length);
  const [ends, name] = words.length < FEW_WORDS && !takesTokens ? [[...endsOfCharacters(text)], "character"] : [words, "word"];
  const count = Math.min(NUM_LENGTHS, ends.length);
  return Array.from({ length: count }, (_, place) => Math.round(((place + 1) * ends.length) / count))
    .map((length) => ({ length, name, text: text.slice(0, ends[length - 1]) }));
}

export class Growth {
  constructor(panel, place) {
    this.panel = panel;
    this.place = place;
    this.clear();
  }

  clear() {
    this.measuring?.abort();
    this.place.replaceChildren(
      html("p", { class: "note" }, "The mean probability of a symbol, exp(log P / |Y|), of the answers to the text's beginnings."),
      html("button", { type: "button", class: "quiet", onclick: () => this.measure() }, "Measure"),
    );
  }

  async measure() {
    const { panel, place } = this;
    this.clear();
    const parts = beginnings(panel.text, panel.takesTokens);
    if (!parts.length) return;
    const { signal } = (this.measuring = new AbortController());
    const requests = parts.map(({ text }) =>
      panel.request({ text, prefix: [], masked: [], decoding: { numHypotheses: 1 }, output: { tokenLogProbs: true } }));
    let results;
    try {
      results = await generateMany(requests, signal);
      if (results.at(-1).error) throw new Error(results.at(-1).error.message);
    } catch (error) {
      if (!signal.aborted) place.append(html("p", { class: "problem", role: "alert" }, error.message));
      return;
    }
    if (signal.aborted) return;
    place.lastChild.textContent = "Measure again";
    place.append(html("ol", { class: "growth" }, ...parts.map(({ length, name }, index) => {
      if (results[index].error) return null; // such as a quotation mark, which many models do not read
      const { text, logProb, tokenLogProbs } = results[index].response.hypotheses[0];
      const mean = Math.exp(logProb / Math.max(1, tokenLogProbs.length));
      return html("li", {},
        html("span", {}, counted(length, name)),
        html("meter", { min: 0, max: 1, value: mean, "aria-label": "mean probability of a symbol" }),
        html("b", {}, share(mean)),
        html("span", { class: "words", dir: "auto" }, text));
    })));
  }
}
