// One answer: its model and settings, the text as it grows, its rivals, its attention, and what it took.

import { generate, Problem, stream } from "./api.js";
import { drawAttention, shown } from "./attention.js";
import { html, oneStop, svg } from "./dom.js";
import { facts } from "./facts.js";
import { Settings } from "./settings.js";

const NUM_ALTERNATIVES = 6;
const NUM_LATENCIES = 40;

const milliseconds = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
const LEAST_SHOWN = 1e-4;
const probability = (logProb) =>
  Math.exp(logProb) < LEAST_SHOWN ? "< 0.01 %" : `${Number((100 * Math.exp(logProb)).toPrecision(2))} %`;

export class Panel {
  constructor(models, name, onproblem) {
    this.models = models;
    this.onproblem = onproblem;
    this.element = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", name);
    this.part = Object.fromEntries(
      [...this.element.querySelectorAll("[data-part]")].map((element) => [element.dataset.part, element]),
    );
    this.text = "";
    this.prefix = [];
    this.latencies = [];
    this.settings = new Settings(this.part.fields, this.part.summary, () => this.answer());
    this.part.model.append(...models.map((model, index) => html("option", { value: index }, this.title(model))));
    this.part.model.addEventListener("change", () => { this.choose(); this.answer(); });
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.part.alternatives.hidden) this.closeAlternatives();
    });
    this.choose();
  }

  get model() {
    return this.models[this.part.model.value];
  }

  // Its name; and its version, where several are served.
  title({ name, label, role }) {
    if (this.models.filter((model) => model.name === name).length === 1) return name;
    return `${name} ${label}, ${role.replace("ROLE_", "").toLowerCase()}`;
  }

  choose() {
    this.prefix = [];
    this.settings.show(this.model);
    this.part.facts.replaceChildren(...facts(this.model));
  }

  ask(text) {
    if (text !== this.text) this.prefix = [];
    this.text = text;
    return this.answer();
  }

  request(decoding, output) {
    const targetPrefix = decoding.targetPrefix ?? this.prefix;
    const { name, version } = this.model;
    const asked = { model: name, version, text: this.text, decoding: { ...decoding }, output };
    delete asked.decoding.targetPrefix;
    if (targetPrefix.length) asked.decoding.targetPrefix = { tokens: targetPrefix };
    return asked;
  }

  async answer() {
    this.running?.abort();
    this.closeAlternatives(false);
    if (!this.text.trim()) return this.clear();
    const { signal } = (this.running = new AbortController());
    const began = performance.now();
    const attention = "attention.score" in this.model.architecture;
    const request = this.request(this.settings.decoding(), { attention, tokenLogProbs: true });
    let grown = "";
    this.element.setAttribute("aria-busy", "true");
    try {
      for await (const { delta, response } of stream(request, signal)) {
        if (delta) {
          grown += delta.text;
          this.part.text.textContent = grown;
          this.part.problem.textContent = "";
        } else {
          this.show(response, (performance.now() - began) / 1000);
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    } finally {
      if (!signal.aborted) this.element.removeAttribute("aria-busy");
    }
    return undefined;
  }

  clear() {
    for (const name of ["text", "problem", "measures", "best", "spoken", "map"]) this.part[name].replaceChildren();
    this.part.attention.hidden = this.part.rivals.hidden = this.part.prefix.hidden = true;
    this.element.removeAttribute("aria-busy");
  }

  fail(error) {
    if (!(error instanceof Problem)) throw error;
    this.clear();
    this.part.problem.textContent = error.message;
    this.onproblem(error);
  }

  show(response, seconds) {
    this.response = response;
    this.part.problem.textContent = "";
    this.part.rivals.hidden = response.hypotheses.length < 2;
    const best = response.hypotheses.length < 2 ? [] : response.hypotheses;
    const largest = Math.max(...best.map((one) => one.logProb));
    const buttons = best.map((one, index) => {
      const bar = svg("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { width: 100 * Math.exp(one.logProb - largest), height: 4 }));
      return html("button", { type: "button", "aria-pressed": index === 0, onclick: () => this.look(index) },
        html("span", { class: "words" }, one.text || "(empty)"),
        html("span", { class: "score", title: "score, and probability" }, `${one.score.toFixed(2)} · ${probability(one.logProb)}`),
        bar);
    });
    this.part.best.replaceChildren(...buttons.map((button) => html("li", {}, button)));
    oneStop(buttons);
    this.buttons = buttons;
    this.look(0);
    this.measure(response.timings, seconds);
    this.part.spoken.textContent = `Answer: ${response.hypotheses[0].text || "empty"}`;
  }

  // Shows one of the answers in full.
  look(index) {
    const found = this.response.hypotheses[index];
    this.buttons.forEach((button, each) => button.setAttribute("aria-pressed", each === index));
    this.closeAlternatives(false);
    this.part.text.replaceChildren(...this.words(found));
    const { prefix } = this.part;
    prefix.hidden = !this.prefix.length;
    prefix.replaceChildren(`Begins with ${this.prefix.map(shown).join(" ")} `,
      html("button", { type: "button", onclick: () => { this.prefix = []; this.answer(); } }, "Let it choose"));
    this.part.attention.hidden = !found.attention;
    if (found.attention) {
      drawAttention(this.part.map, this.part.caption, this.response.sourceTokens, found.tokens, found.attention);
    }
  }

  // The answer's text, in which each token can be pressed; what stands between tokens in the text stands there here.
  words({ text, tokens, tokenLogProbs, finishReason }) {
    const pieces = [];
    const buttons = [];
    let at = 0;
    tokens.forEach((token, index) => {
      const word = shown(token);
      const found = text.indexOf(word, at);
      pieces.push(found > at ? text.slice(at, found) : found < 0 && index ? " " : "");
      if (found >= 0) at = found + word.length;
      const button = html("button", {
        type: "button", class: index < this.prefix.length ? "word chosen" : "word",
        title: tokenLogProbs.length ? `${probability(tokenLogProbs[index])}: press for alternatives` : "alternatives",
        onclick: () => this.alternatives(tokens.slice(0, index), button),
      }, word);
      buttons.push(button);
      pieces.push(button);
    });
    oneStop(buttons);
    if (finishReason === "FINISH_REASON_LENGTH") pieces.push(html("span", { title: "cut at its longest" }, " …"));
    return pieces;
  }

  // What else could come after these tokens, each with the best answer that goes on from there.
  async alternatives(targetPrefix, button) {
    const place = this.part.alternatives;
    const { limits } = this.model;
    const numHypotheses = Math.min(NUM_ALTERNATIVES, limits.maxNumHypotheses, limits.maxBeamSize);
    const decoding = { alternatives: true, beamSize: 1, numHypotheses, targetPrefix };
    const instead = button.textContent;
    this.pressed = button;
    let found;
    try {
      found = await generate(this.request(decoding, { tokenLogProbs: true }));
    } catch (error) {
      return this.fail(error);
    }
    const position = targetPrefix.length;
    const choices = found.hypotheses.map((one) => {
      const token = one.tokens[position];
      const label = token === undefined ? "end here" : shown(token);
      return html("button", {
        type: "button", "aria-current": label === instead, disabled: token === undefined,
        onclick: () => { this.prefix = [...targetPrefix, token]; this.answer(); },
      }, html("b", {}, label), html("span", { class: "score" }, probability(one.tokenLogProbs[position])),
      html("span", { class: "words" }, one.text));
    });
    place.setAttribute("aria-label", `Instead of ${instead}`);
    place.replaceChildren(html("h3", {}, `Instead of ${instead}`), ...choices);
    place.hidden = false;
    const possible = choices.filter((choice) => !choice.disabled);
    oneStop(possible);
    possible[0]?.focus();
    return undefined;
  }

  closeAlternatives(refocus = true) {
    this.part.alternatives.hidden = true;
    if (refocus) this.pressed?.focus();
  }

  measure(timings, seconds) {
    const rows = timings.meanBatchRows.toLocaleString("en", { maximumFractionDigits: 1 });
    this.part.measures.textContent =
      `${milliseconds(seconds)} here, ${milliseconds(timings.total)} in the engine · ${timings.steps} steps · ${rows} rows per step`;
    this.latencies = [...this.latencies, seconds].slice(-NUM_LATENCIES);
    if (this.latencies.length < 2) return;
    const most = Math.max(...this.latencies);
    const width = 160 / NUM_LATENCIES;
    this.part.latencies.replaceChildren(...this.latencies.map((one, index) => {
      const height = Math.max(1, (24 * one) / most);
      return svg("rect", { x: index * width, y: 24 - height, width: width - 1, height });
    }));
  }
}
