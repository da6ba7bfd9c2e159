// One answer: its model and settings, the text as it grows, its rivals, its attention, and what it took.

import { generate, Problem, stream } from "./api.js";
import { drawAttention } from "./attention.js";
import { html, inlineButton, oneStop, svg } from "./dom.js";
import { facts } from "./facts.js";
import { Settings } from "./settings.js";
import { grouped, shown } from "./text.js";

const NUM_ALTERNATIVES = 6;
const NUM_LATENCIES = 40;
const WORKING_AFTER = 400;
// Parts: what is said about an answer; all of it; what is hidden where there is nothing; what has elements of the page in it.
const ABOUT = ["problem", "measures", "spoken", "warnings", "prefix", "again"];
const ALL = [...ABOUT, "text", "best", "map", "attention", "rivals"];
const HIDDEN = ["warnings", "prefix", "again", "attention", "rivals"];
const KEPT = ["again", "attention", "rivals"];
// What a request may fail with that was made for a version which has been replaced; what it would fail with again.
const OUTDATED = ["INVALID_ARGUMENT", "NOT_FOUND"];
const LASTING = ["INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND"];

const milliseconds = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
const LEAST_SHOWN = 1e-4;
const probability = (logProb) =>
  Math.exp(logProb) < LEAST_SHOWN ? "< 0.01 %" : `${Number((100 * Math.exp(logProb)).toPrecision(2))} %`;

export class Panel {
  // onproblem is called with what goes wrong; onstale if the server has other models than it had, and gives those of now.
  constructor(models, name, { onproblem, onstale }) {
    this.onproblem = onproblem;
    this.onstale = onstale;
    this.element = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", name);
    this.part = Object.fromEntries(
      [...this.element.querySelectorAll("[data-part]")].map((element) => [element.dataset.part, element]),
    );
    this.part.heading.textContent = name;
    this.text = "";
    this.prefix = [];
    this.latencies = [];
    this.settings = new Settings(this.part.fields, this.part.summary, () => this.answer());
    this.part.model.addEventListener("change", () => { this.choose(); this.answer(); });
    this.part.again.addEventListener("click", () => this.answer({ refocus: true }));
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.part.alternatives.hidden) this.closeAlternatives();
    });
    this.offer(models);
  }

  get model() {
    return this.models[this.part.model.value];
  }

  // Offers these models; the chosen one stays chosen, by its name and role. Returns whether it is still there.
  offer(models) {
    const before = this.models && this.model;
    this.models = models;
    this.part.model.replaceChildren(...models.map((model, index) => html("option", { value: index }, this.title(model))));
    const same = (model, ...keys) => before && keys.every((key) => model[key] === before[key]);
    const places = [["name", "version"], ["name", "label"], ["name", "role"], ["name"]]
      .map((keys) => models.findIndex((model) => same(model, ...keys)));
    const place = places.find((each) => each >= 0);
    this.part.model.value = place ?? 0;
    if (this.model.version !== before?.version) this.choose();
    return place !== undefined;
  }

  // Its name; and its version, where several are served.
  title({ name, label, role }) {
    if (this.isOnlyVersion(name)) return name;
    return `${name} ${label}, ${role.replace("ROLE_", "").toLowerCase()}`;
  }

  isOnlyVersion(name) {
    return this.models.filter((model) => model.name === name).length === 1;
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

  // A version is named only if there is a choice, so that a page which stays open is answered by newer versions too.
  request(decoding, output) {
    const targetPrefix = decoding.targetPrefix ?? this.prefix;
    const { name, version } = this.model;
    const asked = { model: name, text: this.text, decoding: { ...decoding }, output };
    if (!this.isOnlyVersion(name)) asked.version = version;
    delete asked.decoding.targetPrefix;
    if (targetPrefix.length) asked.decoding.targetPrefix = { tokens: targetPrefix };
    return asked;
  }

  // Answers the text. With refocus, the focus goes to the answer's text, and to its last chosen symbol when that is there.
  async answer({ refocus = false, renewed = false } = {}) {
    this.running?.abort();
    this.closeAlternatives(false);
    if (!this.text.trim()) {
      this.rest();
      return this.clear();
    }
    const { signal } = (this.running = new AbortController());
    const began = performance.now();
    const attention = "attention.score" in this.model.architecture;
    const request = this.request(this.settings.decoding(), { attention, tokenLogProbs: true });
    let grown = "";
    if (refocus) this.part.text.focus();
    this.work(signal);
    try {
      for await (const { delta, response } of stream(request, signal)) {
        if (signal.aborted) return undefined;
        if (delta) {
          if (!grown) this.clear(ABOUT);
          grown += delta.text;
          this.part.text.textContent = grown;
        } else {
          this.show(response, (performance.now() - began) / 1000);
        }
      }
      this.rest();
      if (this.response.version !== this.model.version) await this.onstale();
    } catch (error) {
      if (signal.aborted) return undefined;
      if (OUTDATED.includes(error.code) && !renewed && (await this.renew())) {
        return signal.aborted ? undefined : this.answer({ refocus, renewed: true });
      }
      this.fail(error, grown);
    }
    return undefined;
  }

  // Asks which models there are now; whether the chosen one has another version, for which the request may be right.
  async renew() {
    const { name, version } = this.model;
    await this.onstale().catch(() => undefined);
    return this.model.name === name && this.model.version !== version;
  }

  // Shows that an answer is on its way, unless it comes soon.
  work(signal) {
    this.element.setAttribute("aria-busy", "true");
    this.part.beside.inert = true;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      if (signal.aborted) return;
      this.part.working.hidden = false;
      this.part.spoken.textContent = "Working …";
    }, WORKING_AFTER);
  }

  rest() {
    clearTimeout(this.waiting);
    this.part.working.hidden = true;
    this.element.removeAttribute("aria-busy");
    this.part.beside.inert = false;
  }

  // Takes away what is shown of an answer: all of it, or what is said about it.
  clear(names = ALL) {
    for (const name of names) {
      const part = this.part[name];
      if (HIDDEN.includes(name)) part.hidden = true;
      if (!KEPT.includes(name)) part.replaceChildren();
    }
    this.part.text.classList.remove("incomplete");
  }

  // Shows what went wrong, and what had come of the answer, as incomplete.
  fail(error, grown = "") {
    this.rest();
    if (!(error instanceof Problem)) throw error;
    this.clear();
    if (grown) {
      this.part.text.classList.add("incomplete");
      this.part.text.textContent = `${grown} …`;
    }
    this.part.problem.textContent = grown ? `Incomplete: ${error.message}` : error.message;
    this.part.again.hidden = LASTING.includes(error.code);
    this.onproblem(error);
  }

  show(response, seconds) {
    const follows = document.activeElement === this.part.text;
    this.clear();
    this.response = response;
    this.part.rivals.hidden = response.hypotheses.length < 2;
    const best = response.hypotheses.length < 2 ? [] : response.hypotheses;
    const largest = Math.max(...best.map((one) => one.logProb));
    const buttons = best.map((one, index) => {
      const bar = svg("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { width: 100 * Math.exp(one.logProb - largest), height: 4 }));
      return html("button", { type: "button", "aria-pressed": index === 0, onclick: () => this.look(index) },
        html("span", { class: "words", dir: "auto" }, one.text || "(empty)"),
        html("span", { class: "score", title: "score, and probability" }, `${one.score.toFixed(2)} · ${probability(one.logProb)}`),
        bar);
    });
    this.part.best.replaceChildren(...buttons.map((button) => html("li", {}, button)));
    oneStop(buttons);
    this.buttons = buttons;
    this.look(0);
    this.measure(response.timings, seconds);
    const warnings = response.warnings ?? [];
    this.part.warnings.replaceChildren(...warnings.map((warning) => html("li", { dir: "auto" }, warning)));
    this.part.warnings.hidden = !warnings.length;
    this.part.spoken.textContent = [
      `Answer: ${response.hypotheses[0].text || "empty"}`, ...warnings.map((warning) => `Warning: ${warning}`),
    ].join(". ");
    if (follows) this.focusWord(this.prefix.length - 1);
  }

  // Moves the focus to the symbol with this index, or to the first one.
  focusWord(index) {
    const word = this.wordAt(index) ?? this.wordAt(0);
    word?.parentElement.querySelector('[tabindex="0"]')?.setAttribute("tabindex", -1);
    word?.setAttribute("tabindex", 0);
    word?.focus();
  }

  wordAt(index) {
    return this.words.find(({ first, last }) => first <= index && index <= last)?.button;
  }

  // Shows one of the answers in full.
  look(index) {
    const found = this.response.hypotheses[index];
    this.buttons.forEach((button, each) => button.setAttribute("aria-pressed", each === index));
    this.closeAlternatives(false);
    this.part.text.replaceChildren(...this.pieces(found));
    const { prefix } = this.part;
    prefix.hidden = !this.prefix.length;
    prefix.replaceChildren(`Begins with ${this.prefix.map(shown).join(" ")} `,
      html("button", { type: "button", onclick: () => { this.prefix = []; this.answer({ refocus: true }); } }, "Let it choose"));
    this.part.attention.hidden = !found.attention;
    if (found.attention) {
      drawAttention(this.part.map, this.part.caption, this.response.sourceTokens, found.tokens, found.attention);
    }
  }

  // The answer's text, in which each group of symbols can be pressed; what is between groups in the text is there here.
  pieces({ text, tokens, tokenLogProbs, finishReason }) {
    const { groups, rest } = grouped(text, tokens);
    this.words = groups.map(({ first, last, text: word }) => {
      const logProb = tokenLogProbs.slice(first, last + 1).reduce((sum, each) => sum + each, 0);
      const button = inlineButton({
        class: first < this.prefix.length ? "word chosen" : "word",
        title: tokenLogProbs.length ? `${probability(logProb)}: press for alternatives` : "alternatives",
        onclick: () => this.alternatives(tokens.slice(0, first), tokens[first], button),
      }, word);
      return { first, last, button };
    });
    oneStop(this.words.map(({ button }) => button));
    const pieces = groups.flatMap(({ before }, index) => [before, this.words[index].button]);
    if (finishReason === "FINISH_REASON_LENGTH") pieces.push(html("span", { title: "cut at its longest" }, " …"));
    return [...pieces, rest];
  }

  // What else could come after these tokens, each with the best answer that goes on from there. It is shown only if the
  // answer, its text and its model are still the same when it comes.
  async alternatives(targetPrefix, instead, button) {
    if (this.element.hasAttribute("aria-busy")) return undefined;
    const place = this.part.alternatives;
    const { limits } = this.model;
    const numHypotheses = Math.min(NUM_ALTERNATIVES, limits.maxNumHypotheses, limits.maxBeamSize);
    const decoding = { alternatives: true, beamSize: 1, numHypotheses, targetPrefix };
    this.closeAlternatives(false);
    const { signal } = (this.exploring = new AbortController());
    this.pressed = button;
    let found;
    try {
      found = await generate(this.request(decoding, { tokenLogProbs: true }), signal);
    } catch (error) {
      if (signal.aborted) return undefined;
      return OUTDATED.includes(error.code) && (await this.renew()) ? this.answer() : this.fail(error);
    }
    if (signal.aborted) return undefined;
    const position = targetPrefix.length;
    const choices = found.hypotheses.map((one) => {
      const token = one.tokens[position];
      const label = token === undefined ? "end here" : shown(token);
      return html("button", {
        type: "button", "aria-current": token === instead, disabled: token === undefined,
        onclick: () => { this.prefix = [...targetPrefix, token]; this.answer({ refocus: true }); },
      }, html("b", { dir: "auto" }, label), html("span", { class: "score" }, probability(one.tokenLogProbs[position])),
      html("span", { class: "words", dir: "auto" }, one.text));
    });
    place.setAttribute("aria-label", `Instead of ${shown(instead)}`);
    place.replaceChildren(html("h3", {}, "Instead of ", html("bdi", {}, shown(instead))), ...choices);
    place.hidden = false;
    const possible = choices.filter((choice) => !choice.disabled);
    oneStop(possible);
    possible[0]?.focus();
    return undefined;
  }

  closeAlternatives(refocus = true) {
    this.exploring?.abort();
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
