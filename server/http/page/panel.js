// One answer: its model and settings, the text as it grows, its alternatives, and its steps.

import { copy } from "./address.js";
import { Alternatives } from "./alternatives.js";
import { drawAnswers } from "./answers.js";
import { Problem, stream } from "./api.js";
import { drawAttention } from "./attention.js";
import { html, inlineButton, oneStop, terms } from "./dom.js";
import { facts, hasAttention, hasOurLayers, purpose, takesTokens } from "./facts.js";
import { Growth } from "./growth.js";
import { counted, milliseconds, number, probability, share } from "./numbers.js";
import { Settings } from "./settings.js";
import { Steps } from "./steps.js";
import { grouped, shown } from "./text.js";
import { drawTree } from "./tree.js";

const WORKING_AFTER = 400;
const NUM_CANDIDATES = 6; // of each step of a trace
const TRACED = ["steps", "tree"]; // the sections that need a trace
// Parts: notes about an answer; the whole answer.
const ABOUT = ["problem", "spoken", "warnings", "again"];
const ALL = [...ABOUT, "confidence", "prefix", "masked", "whole", "tools", "hint", "difference", "text", "best", "map", "attention", "rivals", "tree", "inside"];
// Errors of a request for a version that has been replaced; errors that a second try would have again.
const OUTDATED = ["INVALID_ARGUMENT", "NOT_FOUND"];
const LASTING = ["INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND"];

let numPanels = 0;

export class Panel {
  // `events` are functions: problem(error); stale() if the server may have other models now, which it fetches; change()
  // if the address has to change; answer() after each new answer; keep(panel).
  constructor(models, name, events) {
    this.events = events;
    this.template = document.getElementById("panel").content.firstElementChild;
    this.element = this.template.cloneNode(true);
    this.element.setAttribute("aria-label", name);
    const named = (key) => Object.fromEntries(
      [...this.element.querySelectorAll(`[data-${key}]`)].map((element) => [element.dataset[key], element]),
    );
    this.part = named("part");
    this.sections = named("open");
    this.part.heading.textContent = name;
    this.part.fields.id = `settings${(numPanels += 1)}`;
    this.text = "";
    this.prefix = [];
    this.masked = [];
    this.settings = new Settings(this.part.fields, this.part.summary, () => this.answer());
    this.alternatives = new Alternatives(this, this.part.alternatives);
    this.steps = new Steps(this.part.steps);
    this.growth = new Growth(this, this.part.growth);
    this.listen();
    this.offer(models);
  }

  listen() {
    const { part } = this;
    part.model.addEventListener("change", () => { this.choose(); this.answer(); });
    part.settings.addEventListener("toggle", () => { if (part.settings.open) this.settings.open(); });
    part.again.addEventListener("click", () => this.answer({ refocus: true }));
    part.copy.addEventListener("click", () => copy(this.hypothesis.text, part.copy));
    part.keep.addEventListener("click", () => this.events.keep(this));
    part.release.addEventListener("click", () => this.events.keep(this));
    for (const [name, section] of Object.entries(this.sections)) {
      section.addEventListener("toggle", () => {
        this.events.change();
        // A trace costs the server something, so it is asked for when it is looked at.
        if (!section.open || !TRACED.includes(name) || !this.response) return;
        if (this.response.trace) this.redraw();
        else this.answer();
      });
    }
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.alternatives.close();
    });
  }

  get model() {
    return this.models[this.part.model.value];
  }

  get hypothesis() {
    return this.response.hypotheses[this.index];
  }

  // Takes the state of an address or of another panel; `prefix` and `masked` belong to an answer to `kept`, else to `text`.
  set state({ text, model, version, prefix, masked, kept, open, options }) {
    const withName = this.models.findIndex((each) => each.name === model);
    const withVersion = this.models.findIndex((each) => each.name === model && each.version === version);
    this.part.model.value = Math.max(withVersion >= 0 ? withVersion : withName, 0);
    this.settings.values = { ...options };
    this.choose();
    this.part.unserved.hidden = !model || (version ? withVersion : withName) >= 0;
    this.part.unserved.textContent = `${version ? `Version ${version} of the model` : "The model"} ${model} of this link `
      + `is not served here; ${this.title(this.model)} answers instead.`;
    this.text = kept ?? text;
    this.keeps = kept !== undefined;
    this.prefix = [...prefix];
    this.masked = [...masked];
    for (const name of open) if (this.sections[name]) this.sections[name].open = true;
  }

  get state() {
    const { name, version } = this.model;
    return {
      text: this.text,
      model: name,
      version: this.isOnlyVersion(name) ? undefined : version,
      prefix: this.prefix,
      masked: this.masked,
      kept: this.isKept ? this.text : undefined,
      open: Object.keys(this.sections).filter((each) => this.sections[each].open),
      options: this.settings.values,
    };
  }

  // Offers these models; the chosen one stays chosen, by its name and role.
  offer(models) {
    const before = this.models && this.model;
    this.models = models;
    this.part.model.replaceChildren(...models.map((model, index) => html("option", { value: index }, this.title(model))));
    const places = [["name", "version"], ["name", "label"], ["name", "role"], ["name"]]
      .map((keys) => models.findIndex((model) => before && keys.every((key) => model[key] === before[key])));
    this.part.model.value = places.find((each) => each >= 0) ?? 0;
    if (this.model.version !== before?.version) this.choose();
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
    this.masked = [];
    this.attends = hasAttention(this.model);
    this.takesTokens = takesTokens(this.model);
    this.settings.show(this.model);
    this.part.unserved.hidden = true;
    this.part.purpose.textContent = purpose(this.model);
    this.part.facts.replaceChildren(...facts(this.model));
    this.growth.clear();
  }

  // Keeps the answer that is there, whatever is typed; or follows the text again.
  set keeps(keeps) {
    this.isKept = keeps;
    this.part.kept.hidden = !keeps;
    this.part.keep.hidden = keeps;
    this.part.keptText.textContent = this.text;
  }

  ask(text) {
    if (this.isKept) return;
    if (text !== this.text) {
      this.prefix = [];
      this.masked = [];
      this.steps.at = 0;
      this.growth.clear();
    }
    this.text = text;
    this.answer();
  }

  // A version is named only if there is a choice, so that a page which stays open is answered by newer versions too.
  request({ decoding: more = {}, output = {}, text = this.text, prefix = this.prefix, masked = this.masked } = {}) {
    const { name, version } = this.model;
    const { decoding, output: set } = this.settings.request();
    const source = this.takesTokens ? { tokens: { tokens: text.trim().split(/\s+/) } } : { text };
    const request = { model: name, ...source, decoding: { ...decoding, ...more }, output: { ...set, ...output } };
    if (!this.isOnlyVersion(name)) request.version = version;
    if (masked.length) request.decoding.maskedSourcePositions = masked.toSorted((a, b) => a - b);
    if (prefix.length) Object.assign(request.decoding, { targetPrefix: { tokens: prefix }, targetPrefixText: undefined });
    // A prefix and alternatives belong to a text as a whole.
    if (prefix.length || more.alternatives) request.decoding.splitSentences = undefined;
    return request;
  }

  // Answers the text, without these outputs. With refocus, the focus goes to the answer's text, and to its last chosen
  // symbol when that is there.
  async answer({ refocus = false, renewed = false, without = [] } = {}) {
    this.running?.abort();
    this.alternatives.close(false);
    this.events.change();
    if (!this.text.trim()) {
      this.rest();
      this.response = undefined;
      this.clear();
      return;
    }
    const { signal } = (this.running = new AbortController());
    const began = performance.now();
    const output = { attention: this.attends && !without.includes("attention"), tokenLogProbs: true };
    if (!without.includes("trace") && TRACED.some((name) => this.sections[name].open)) output.trace = NUM_CANDIDATES;
    const request = this.request({ output });
    let grown = "";
    if (refocus) this.part.text.focus();
    this.work(signal);
    try {
      for await (const { delta, response } of stream(request, signal)) {
        if (signal.aborted) return;
        if (delta) {
          if (!grown) this.clear(ABOUT);
          grown += delta.text;
          this.part.text.textContent = grown;
        } else if (this.masked.length && this.maskedOf && this.maskedOf !== String(response.sourceTokens)) {
          this.masked = []; // as a whole, a text has its symbols at other positions than in parts
          return await this.answer({ refocus });
        } else {
          this.show(response, (performance.now() - began) / 1000);
        }
      }
      this.rest();
      if (this.response.version !== this.model.version) await this.events.stale().catch(() => undefined);
    } catch (error) {
      if (signal.aborted) return;
      const isOutdated = OUTDATED.includes(error.code) && !renewed && (await this.renew());
      if (signal.aborted) return;
      if (isOutdated) {
        await this.answer({ refocus, renewed: true });
      } else if (this.masked.length && error.fields?.some((field) => field.startsWith("decoding.masked"))) {
        this.masked = []; // positions that the text does not have, as a whole or in a link
        await this.answer({ refocus, renewed });
      } else if (output.trace && error.code === "INVALID_ARGUMENT") {
        // A trace may be too large where the answer is not, and so may attention.
        await this.answer({ refocus, renewed, without: ["trace"] });
      } else if (output.attention && error.fields?.includes("output.attention")) {
        await this.answer({ refocus, renewed, without: ["trace", "attention"] });
      } else {
        this.fail(error, grown);
      }
    }
  }

  // Fetches the list of models; returns whether the chosen one has another version, for which the request may be right.
  async renew() {
    const { name, version } = this.model;
    await this.events.stale().catch(() => undefined);
    return this.model.name === name && this.model.version !== version;
  }

  // Shows why there are no alternatives, below the answer; or answers again, if the model has another version now.
  async recover(error, signal) {
    const isOutdated = OUTDATED.includes(error.code) && (await this.renew());
    if (signal.aborted) return;
    if (!(error instanceof Problem)) throw error;
    if (isOutdated) {
      await this.answer();
      return;
    }
    this.part.problem.textContent = `No alternatives: ${error.message}`;
    this.events.problem(error);
  }

  // True if texts are answered sentence by sentence, unless another option prevents it.
  get splits() {
    return this.settings.values.split_sentences ?? this.model.defaults.splitSentences;
  }

  // Shows that an answer is on its way, unless it comes soon.
  work(signal) {
    this.element.setAttribute("aria-busy", "true");
    this.part.inside.inert = true;
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
    this.part.inside.inert = false;
  }

  // Removes an answer, or these of its parts: they are as in the template again.
  clear(names = ALL) {
    for (const name of names) {
      const blank = this.template.querySelector(`[data-part="${name}"]`);
      this.part[name].hidden = blank.hidden;
      if (!blank.hasChildNodes()) this.part[name].replaceChildren();
    }
    if (names === ALL) this.steps.clear();
    this.part.text.classList.remove("incomplete");
  }

  // Shows an error, and the text that came before it as incomplete.
  fail(error, grown = "") {
    this.rest();
    if (!(error instanceof Problem)) throw error;
    this.clear();
    this.response = undefined;
    if (grown) {
      this.part.text.classList.add("incomplete");
      this.part.text.textContent = `${grown} …`;
    }
    this.part.problem.textContent = grown ? `Incomplete: ${error.message}` : error.message;
    this.part.again.hidden = LASTING.includes(error.code);
    this.events.problem(error);
  }

  show(response, seconds) {
    const { part } = this;
    const follows = document.activeElement === part.text;
    this.clear();
    this.response = response;
    this.index = 0;
    part.tools.hidden = part.inside.hidden = false;
    part.rivals.hidden = response.hypotheses.length < 2;
    drawAnswers(part.best, part.ranking, response, this.request(), (index) => this.look(index));
    this.look(0);
    this.measure(response.timings, seconds);
    const warnings = response.warnings ?? [];
    part.warnings.replaceChildren(...warnings.map((warning) => html("li", { dir: "auto" }, warning)));
    part.warnings.hidden = !warnings.length;
    part.spoken.textContent = [
      `Answer: ${response.hypotheses[0].text || "empty"}`, ...warnings.map((warning) => `Warning: ${warning}`),
    ].join(". ");
    if (follows) this.focusWord(this.prefix.length - 1);
    this.events.answer(this);
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
    const { part, response } = this;
    const moves = index !== this.index;
    this.index = index;
    const { hypothesis } = this;
    this.alternatives.close(false);
    part.text.replaceChildren(...this.pieces(hypothesis));
    part.hint.hidden = !this.words.length;
    part.confidence.hidden = hypothesis.confidence === undefined;
    part.confidence.textContent = `Right with a probability of ${share(hypothesis.confidence ?? 0)}, as calibrated on held-out texts.`;
    this.tell(part.prefix, this.prefix, `Begins with ${this.prefix.map(shown).join(" ")} `, "Let it choose",
      () => { this.prefix = []; });
    this.tell(part.masked, this.masked, `Not looked at: ${this.masked.map((at) => shown(response.sourceTokens[at])).join(" ")} `,
      "Look at all", () => { this.masked = []; });
    part.whole.hidden = !(this.splits && response.trace);
    part.attention.hidden = !this.attends;
    if (hypothesis.attention) {
      drawAttention(part.map, part.caption, response.sourceTokens, hypothesis.tokens, hypothesis.attention, {
        masked: this.masked,
        onmask: hasOurLayers(this.model) ? (at) => this.mask(at) : undefined, // others are refused with a mask
      });
    } else part.caption.textContent = "The attention of so long a text is too large to be shown.";
    if (this.sections.steps.open) this.steps.show(this);
    if (this.sections.tree.open) {
      if (response.trace) drawTree(part.tree, response, index);
      else part.tree.textContent = "The course of this search is too long to be shown.";
    }
    if (moves) this.events.answer(this);
  }

  // Hides a source symbol from attention, or shows it again.
  mask(at) {
    this.maskedOf = String(this.response.sourceTokens);
    this.masked = this.masked.includes(at) ? this.masked.filter((each) => each !== at) : [...this.masked, at];
    this.answer();
  }

  // Draws again, as large as there is room now.
  redraw() {
    if (this.response) this.look(this.index);
  }

  // A note on what a request had besides its text, and a button that removes this.
  tell(place, items, text, action, undo) {
    place.hidden = !items.length;
    place.replaceChildren(text,
      html("button", { type: "button", class: "link", onclick: () => { undo(); this.answer({ refocus: true }); } }, action));
  }

  // The answer's text, in which each group of symbols can be pressed; the text between groups stays.
  pieces({ text, tokens, tokenLogProbs, finishReason }) {
    const { groups, rest } = grouped(text, tokens);
    this.words = groups.map(({ first, last, text: word }) => {
      const logProb = tokenLogProbs.slice(first, last + 1).reduce((sum, each) => sum + each, 0);
      const button = inlineButton({
        class: first < this.prefix.length ? "word chosen" : "word",
        "aria-label": word.trim() ? null : shown(word),
        title: tokenLogProbs.length ? `${probability(logProb)}: press for alternatives` : "alternatives",
        onclick: () => this.alternatives.open(tokens.slice(0, first), tokens[first], button),
      }, word);
      return { first, last, word, button };
    });
    oneStop(this.words.map(({ button }) => button));
    const pieces = groups.flatMap(({ before }, index) => [before, this.words[index].button]);
    if (finishReason === "FINISH_REASON_LENGTH") pieces.push(html("span", { title: "cut at its longest" }, " …"));
    if (!text) pieces.push(html("span", { class: "note" }, "(empty)"));
    return [...pieces, rest];
  }

  // Marks the words that another answer lacks: those of the indices.
  mark(indices, other) {
    this.words.forEach(({ button }, index) => button.classList.toggle("differs", indices.has(index)));
    this.part.difference.hidden = false;
    this.part.difference.textContent = indices.size
      ? `${counted(indices.size, "symbol")} of ${this.words.length} not in ${other}: marked.`
      : `All symbols are in ${other}, in this order.`;
  }

  unmark() {
    for (const { button } of this.words ?? []) button.classList.remove("differs");
    this.part.difference.hidden = true;
  }

  measure(timings, seconds) {
    this.part.measures.textContent = `${milliseconds(seconds)} · ${counted(timings.steps, "step")}`;
    this.part.costs.replaceChildren(...terms([
      ["Here, with the network", milliseconds(seconds)],
      ["At the server", milliseconds(timings.total)],
      ["Waiting for a place", milliseconds(timings.queue ?? 0)],
      ["Encoder", milliseconds(timings.encode ?? 0)],
      [`Decoder, ${counted(timings.steps, "step")}`, milliseconds(timings.decode ?? 0)],
      ["Hypotheses per step, including those of other requests", number(timings.meanBatchRows)],
    ]));
  }
}
