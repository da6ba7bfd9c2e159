// The best answers, in the order of their scores, and a sentence about this order.

import { html, oneStop, svg } from "./dom.js";
import { fixed, probability } from "./numbers.js";

// Draws a button for each answer; `onlook` is called with the number of one that is pressed.
export function drawAnswers(place, ranking, response, request, onlook) {
  const best = response.hypotheses;
  const largest = Math.max(...best.map((hypothesis) => hypothesis.logProb));
  const buttons = best.map((hypothesis, index) => {
    const bar = svg("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { width: 100 * Math.exp(hypothesis.logProb - largest), height: 4 }));
    return html("button", { type: "button", "aria-pressed": index === 0, onclick: () => press(index) },
      html("span", { class: "words", dir: "auto" }, hypothesis.text || "(empty)"),
      html("span", { class: "score" }, `${probability(hypothesis.logProb)} · score ${fixed(hypothesis.score)}`),
      bar);
  });
  const press = (index) => {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === index));
    onlook(index);
  };
  place.replaceChildren(...buttons.map((button) => html("li", {}, button)));
  oneStop(buttons);
  const isSame = best.every(({ score, logProb }) => Math.abs(score - logProb) < 1e-6);
  ranking.textContent = request.decoding.sampling
    ? "Drawn at random. The bar is the probability of the whole answer, relative to the largest."
    : `Highest score first. The score is ${isSame ? "log P" : "log P, corrected by the penalties of the settings"}; `
      + "P, the probability of the whole answer, is the bar, relative to the largest.";
}
