// An answer step by step: scores, weights, context and distribution of each symbol, with their formulas.

import { strongest } from "./attention.js";
import { html } from "./dom.js";
import { hasOurLayers } from "./facts.js";
import { counted, fixed, number, probability, share } from "./numbers.js";
import { isRightToLeft, shown } from "./text.js";
import { FATES, searchOf } from "./trace.js";

const READING_SECONDS = 1.2; // for a step, while it plays
const LEAST_SUMMAND = 0.005;
const BAR_HEIGHT = 5.5; // of a weight of 1, in rem
const LEAST_SHOWN = 0.0005;

// The match of the state s (the query) with the encoder's state h at position j (training/model/attention.py).
const SCORES = {
  dot: "e_{tj} = s_{t} · h_{j}",
  scaled_dot: "e_{tj} = s_{t} · h_{j} / √A",
  general: "e_{tj} = s_{t} · W h_{j}",
  additive: "e_{tj} = v · tanh(W s_{t} + U h_{j})",
  concat: "e_{tj} = v · tanh(W [s_{t}; h_{j}])",
};

// The formulas of the scores in an architecture.
function scores(architecture) {
  let score = SCORES[architecture["attention.score"]];
  if (architecture["attention.key_size"]) score = score.replace("s_{t} · h_{j}", "W s_{t} · U h_{j}");
  if (architecture["attention.query"] === "previous") score = score.replace("s_{t}", "s_{t−1}");
  if (architecture["attention.coverage"] !== "true") return [score];
  return [score.replace("h_{j})", "h_{j} + V κ_{t−1,j})"), "κ_{tj} = κ_{t−1,j} + α_{tj} / φ_{j}"];
}

// A formula: what is in _{} is below the line, and t is the number of the step.
function formula(text, step) {
  const pieces = text.replace(/_\{([^}]*)\}/g, (_, below) => `_{${below.replace("t−1", step - 1).replace("t", step)}}`)
    .split(/_\{([^}]*)\}/);
  return html("p", { class: "formula" }, ...pieces.map((piece, index) => (index % 2 ? html("sub", {}, piece) : piece)));
}

export class Steps {
  constructor(place) {
    this.place = place;
    this.at = 0;
  }

  clear() {
    this.pause();
    this.place.replaceChildren();
  }

  // Shows the answer that the panel looks at.
  show({ response, index, model, attends }) {
    this.pause();
    const hypothesis = response.hypotheses[index];
    const { search, way } = response.trace ? searchOf(response.trace, index) : {};
    Object.assign(this, { hypothesis, model, attends, way, search });
    this.isKnown = hasOurLayers(model);
    this.isFed = model.architecture["decoder.source_vector"] === "true"; // with the source's vector, at each step
    this.symbols = [...hypothesis.tokens.map(shown), ...(hypothesis.finishReason === "FINISH_REASON_EOS" ? ["end"] : [])];
    this.sources = response.sourceTokens.map(shown);
    this.at = Math.min(this.at, this.symbols.length - 1);
    this.slider = html("input", {
      type: "range", min: 1, max: this.symbols.length, value: this.at + 1, "aria-label": "Step",
      oninput: () => { this.pause(); this.go(Number(this.slider.value) - 1); },
    });
    this.player = html("button", { type: "button", class: "quiet", onclick: () => (this.playing ? this.pause() : this.play()) }, "Play");
    this.written = html("p", { class: "written", dir: isRightToLeft(this.symbols) ? "rtl" : "ltr" });
    this.inner = html("div", { class: "stages" });
    this.place.replaceChildren(html("div", { class: "row" }, this.player, this.slider), this.written, this.inner);
    this.go(this.at);
  }

  play() {
    this.player.textContent = "Pause";
    if (this.at === this.symbols.length - 1) this.go(0);
    this.playing = setInterval(() => {
      this.go(this.at + 1);
      if (this.at === this.symbols.length - 1) this.pause();
    }, 1000 * READING_SECONDS);
  }

  pause() {
    clearInterval(this.playing);
    this.playing = undefined;
    if (this.player) this.player.textContent = "Play";
  }

  go(at) {
    this.at = at;
    const { tokenLogProbs } = this.hypothesis;
    this.slider.value = at + 1;
    this.slider.setAttribute("aria-valuetext",
      `${at + 1} of ${this.symbols.length}: ${this.symbols[at]}, ${probability(tokenLogProbs[at])}`);
    this.written.replaceChildren(...this.symbols.flatMap((symbol, place) =>
      [html("bdi", { class: place === at ? "now" : place > at ? "later" : "" }, symbol), " "]));
    const stages = [this.distribution()];
    if (this.hypothesis.attention) stages.unshift(this.weights(), ...(this.isKnown ? [this.context()] : []));
    else if (!this.attends && this.isKnown) stages.unshift(this.vector());
    stages.forEach((stage, place) => stage.firstChild.prepend(`${place + 1}. `));
    this.inner.replaceChildren(...stages);
    this.showLargest();
  }

  // Scrolls the weights of a long text to the largest one.
  showLargest() {
    const list = this.inner.querySelector(".weights");
    if (!list) return;
    const row = this.row();
    const middle = (element) => element.getBoundingClientRect().left + element.clientWidth / 2;
    list.scrollLeft += middle(list.children[row.indexOf(Math.max(...row))]) - middle(list);
  }

  stage(title, formulas, ...drawn) {
    return html("section", {}, html("h3", {}, title),
      html("div", {}, ...formulas.map((text) => formula(text, this.at + 1))), html("div", { class: "drawn" }, ...drawn));
  }

  row() {
    const { columns, weights } = this.hypothesis.attention;
    return weights.slice(this.at * columns, (this.at + 1) * columns);
  }

  // The softmax takes only differences of scores, so the weights give back the scores up to a constant: here the largest
  // is 0.
  weights() {
    const row = this.row();
    const largest = Math.max(...row);
    if (!this.isKnown) {
      return this.stage("Where to look: weights", [], this.bars(row),
        html("p", { class: "note" }, "The weights that this model returns. If it has several heads, they are their mean."));
    }
    const { architecture } = this.model;
    const isCovered = architecture["attention.coverage"] === "true";
    return this.stage("Where to look: scores and weights",
      [...scores(architecture), "α_{tj} = exp e_{tj} / Σ_{k} exp e_{tk}",
        `Σ_{k} exp e_{tk} = ${number(1 / largest)}`,
        `α_{t}(${this.sources[row.indexOf(largest)]}) = exp 0 / ${number(1 / largest)} = ${fixed(largest)}`],
      this.bars(row, largest),
      html("p", { class: "note" }, "Above: the weight. Below each symbol: its score e, up to a constant; the largest is 0, since a "
        + `softmax sees only differences.${isCovered ? " κ is the attention that a symbol has had, over its fertility φ." : ""}`));
  }

  // Each weight with its symbol and, below it, its score if the largest weight is given.
  bars(row, largest) {
    const columns = [...row].map((weight, at) => html("li", {},
      html("small", { dir: "ltr" }, weight < LEAST_SHOWN ? "0 %" : share(weight)),
      html("span", { class: "bar", style: { height: `${BAR_HEIGHT * weight}rem` } }),
      html("bdi", {}, this.sources[at]),
      largest && html("small", { dir: "ltr" }, weight > 0 ? fixed(Math.log(weight / largest), 1) : "−∞")));
    return html("ol", { class: "weights", tabindex: 0, "aria-label": "Weights", dir: isRightToLeft(this.sources) ? "rtl" : "ltr" }, ...columns);
  }

  context() {
    const summands = strongest(this.row(), this.sources, LEAST_SUMMAND);
    const rest = 1 - summands.reduce((sum, { weight }) => sum + weight, 0);
    const value = this.model.architecture["attention.value_size"] ? "V h" : "h";
    const names = summands.map(({ weight, label }) => `${fixed(weight)} ${value}(${label})`);
    if (rest > LEAST_SUMMAND) {
      names.push("…");
      summands.push({ weight: rest, label: "…" });
    }
    const bar = html("div", { class: "stack", "aria-hidden": "true" }, ...summands.map(({ weight, label }) =>
      html("span", { style: { flexGrow: weight } }, weight > 0.08 ? label : "")));
    return this.stage("What is seen: the context", [`c_{t} = Σ_{j} α_{tj} ${value}_{j}`],
      html("p", {}, `= ${names.join(" + ")}`), bar,
      html("p", { class: "note" }, "h(x) is what the encoder knows at x, having read the text around it."));
  }

  // Without attention.
  vector() {
    const { architecture } = this.model;
    const directions = architecture["encoder.bidirectional"] === "true" ? 2 : 1;
    const size = directions * Number(architecture["encoder.hidden_size"] ?? architecture.hidden_size);
    const symbols = this.sources.length;
    return this.stage("What is known of the text: one vector",
      ["v = h_{S}", this.isFed ? "s_{t} = f(s_{t−1}, y_{t−1}, v)" : "s_{t} = f(s_{t−1}, y_{t−1}), s_{0} from v"],
      html("p", {}, `${counted(symbols, "symbol")} in ${counted(size, "number")}: ${number(size / symbols)} for each. `
        + `A text of twice the length has ${number(size / (2 * symbols))}.`),
      html("meter", { min: 0, max: 1, value: 1 / symbols, "aria-label": "share of the vector for each symbol" }),
      html("p", { class: "note" }, "This model has no attention: at each step the decoder has only this vector and what it remembers. "
        + "See below, as the text grows, what is lost."));
  }

  // The formula of the probability (training/model/readout.py and attention.py).
  prediction(architecture, isCopying) {
    const previous = architecture["decoder.readout"] === "maxout" ? ", y_{t−1}" : "";
    const generated = `softmax(W r(s_{t}${previous}${this.attends ? ", c_{t}" : this.isFed ? ", v" : ""}))`;
    return `p(y_{t}) = ${isCopying ? `g_{t} ${generated} + (1 − g_{t}) Σ_{j: xj = yt} α_{tj}` : generated}`;
  }

  distribution() {
    const { tokens, tokenLogProbs } = this.hypothesis;
    const logProb = tokenLogProbs[this.at];
    const [traced, next] = [this.at, this.at + 1].map((step) => this.search?.steps[step]?.live[this.way[step]]);
    // The symbol of the search: an unknown one may have been replaced in the answer.
    const chosen = next?.token ?? tokens[this.at] ?? "</s>";
    const candidates = (traced?.candidates ?? []).map((candidate) => ({ ...candidate, isChosen: candidate.token === chosen }));
    if (!candidates.some(({ isChosen }) => isChosen)) candidates.push({ token: chosen, logProb, isChosen: true });
    const others = 1 - candidates.reduce((sum, candidate) => sum + Math.exp(candidate.logProb), 0);
    const line = (name, value, about, isChosen) => html("li", { class: isChosen ? "chosen" : "" },
      html("b", { dir: "auto" }, name), html("meter", { min: 0, max: 1, value, "aria-label": `probability of ${name}` }),
      html("span", {}, share(value)), html("span", { class: "note" }, about));
    const sum = tokenLogProbs.slice(0, this.at + 1).reduce((total, each) => total + each, 0);
    const { architecture } = this.model;
    const isCopying = architecture["decoder.copying"] === "true";
    return this.stage("What comes next: the distribution",
      [...(this.isKnown ? [this.prediction(architecture, isCopying)] : []), "log P = Σ_{i ≤ t} log p(y_{i})"],
      html("ol", { class: "distribution" },
        ...candidates.map(({ token, logProb: own, fate, isChosen }) =>
          line(shown(token), Math.exp(own), isChosen ? "taken" : FATES[fate] ?? "", isChosen)),
        others > 0.00005 ? line("others", others, "", false) : null),
      isCopying ? html("p", { class: "note" }, "g is the probability of generating a symbol instead of copying one, x, of the text.") : null,
      html("p", { class: "note" }, `log P so far: ${this.at ? `${fixed(sum - logProb)} + (${fixed(logProb)}) = ` : ""}${fixed(sum)}`));
  }
}
