// The alternatives at a place of an answer, each with the answer that would follow from it.

import { generate } from "./api.js";
import { html, oneStop } from "./dom.js";
import { probability } from "./numbers.js";
import { shown } from "./text.js";

const NUM_ALTERNATIVES = 6;

export class Alternatives {
  constructor(panel, place) {
    this.panel = panel;
    this.place = place;
  }

  // Shows the symbols that could follow the prefix in place of `instead`, the most probable first, each with the best
  // answer that goes on from there. They are shown only if the answer is still the same when they come.
  async open(prefix, instead, button) {
    const { panel, place } = this;
    if (panel.element.hasAttribute("aria-busy")) return;
    const { limits } = panel.model;
    const numHypotheses = Math.min(NUM_ALTERNATIVES, limits.maxNumHypotheses, limits.maxBeamSize);
    const decoding = { alternatives: true, beamSize: 1, numHypotheses, sampling: undefined };
    this.close(false);
    const { signal } = (this.exploring = new AbortController());
    this.pressed = button;
    panel.part.problem.textContent = "";
    let response;
    try {
      response = await generate(panel.request({ decoding, prefix, output: { tokenLogProbs: true } }), signal);
    } catch (error) {
      if (!signal.aborted) panel.recover(error, signal);
      return;
    }
    if (signal.aborted) return;
    const logProb = ({ tokenLogProbs }) => tokenLogProbs[prefix.length];
    const choices = response.hypotheses.sort((a, b) => logProb(b) - logProb(a)).map((hypothesis) => {
      const token = hypothesis.tokens[prefix.length];
      return html("button", {
        type: "button", "aria-current": token === instead, disabled: token === undefined,
        onclick: () => { panel.prefix = [...prefix, token]; panel.answer({ refocus: true }); },
      }, html("b", { dir: "auto" }, token === undefined ? "end here" : shown(token)),
      html("span", { class: "score" }, probability(logProb(hypothesis))),
      html("span", { class: "words", dir: "auto" }, hypothesis.text));
    });
    place.setAttribute("aria-label", `Instead of ${shown(instead)}`);
    place.replaceChildren(
      html("h3", {}, "Instead of ", html("bdi", {}, shown(instead)), ": symbol, its probability here, and the answer from there on"),
      ...choices);
    place.hidden = false;
    const possible = choices.filter((choice) => !choice.disabled);
    oneStop(possible);
    possible[0]?.focus();
  }

  close(refocus = true) {
    this.exploring?.abort();
    if (refocus && !this.place.hidden) this.pressed?.focus();
    this.place.hidden = true;
  }
}
