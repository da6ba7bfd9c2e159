// The page: the typed text goes to one panel, or to two alongside each other; the address has all that is shown.

import { copy, readAddress, writeAddress } from "./address.js";
import { models, Problem, useToken } from "./api.js";
import { differing } from "./differences.js";
import { html } from "./dom.js";
import { counted } from "./numbers.js";
import { Panel } from "./panel.js";

const PAUSE = 120;

const byId = (id) => document.getElementById(id);
const [source, typing, compare, answers, credentials, examples] =
  ["source", "typing", "compare", "answers", "credentials", "examples"].map(byId);

const events = { problem, stale: renew, change: remember, answer: compareAnswers, keep };

let panels = [];
let served = [];
let waiting;

function ask() {
  clearTimeout(waiting);
  for (const panel of panels) panel.ask(source.value);
  offerExamples();
}

function problem({ code }) {
  if (code !== "UNAUTHENTICATED") return;
  credentials.hidden = false;
  byId("token").focus();
}

function remember() {
  if (panels.length) writeAddress({ text: source.value, panels: panels.map((panel) => panel.state) });
  offerExamples();
}

// Opens this many panels. A new one has the state of the address, or the settings of the one before.
function open(number, states = []) {
  panels = panels.slice(0, number);
  while (panels.length < number) {
    const place = panels.length;
    const panel = new Panel(served, number === 1 ? "Answer" : `Answer ${place + 1}`, events);
    const state = states[place] ?? (panels[0] && { ...panels[0].state, prefix: [], masked: [], kept: undefined });
    if (state) panel.state = state;
    panels.push(panel);
  }
  answers.classList.toggle("two", number === 2);
  answers.replaceChildren(...panels.map((panel) => panel.element));
  if (number === 1) panels[0].unmark();
  panels[0].redraw();
}

// Keeps the answer of a panel while the other follows the text; or ends that.
function keep(panel) {
  panel.keeps = !panel.isKept;
  if (panel.isKept) {
    if (panels.length === 1) {
      compare.checked = true;
      open(2);
      panels[1].ask(source.value);
    }
    remember();
    source.focus();
  } else panel.ask(source.value);
}

// Marks the differences of the two answers that are shown.
function compareAnswers() {
  const [first, second] = panels;
  if (!second || panels.some(({ response }) => !response)) return;
  const marks = differing(...panels.map(({ words }) => words.map(({ word }) => word)));
  first.mark(marks[0], "the second answer");
  second.mark(marks[1], first.isKept ? "the kept answer" : "the first answer");
}

// Offers texts that the first panel's model answers well, with their answers.
function offerExamples() {
  const offered = panels[0]?.model.examples ?? [];
  examples.hidden = !offered.length;
  examples.classList.toggle("first", !source.value.trim());
  if (offered === examples.offered) return;
  examples.offered = offered;
  const choose = (text) => {
    source.value = text;
    ask();
    answers.focus({ preventScroll: true });
  };
  examples.replaceChildren("Try ", ...offered.map(({ source: text, target }) =>
    html("button", { type: "button", class: "quiet", onclick: () => choose(text) },
      html("bdi", {}, text), html("span", { class: "target" }, " → ", html("bdi", {}, target)))));
}

// Learns which models are served now, which may be others than when the page was opened.
async function renew() {
  const now = await models();
  if (!now.length) throw new Problem({ detail: "No model is served now." });
  served = now;
  byId("server").textContent = counted(served.length, "model");
  for (const panel of panels) panel.offer(served);
}

async function connect() {
  const again = byId("reconnect");
  panels = [];
  try {
    await renew();
  } catch (error) {
    byId("server").textContent = error.message;
    again.hidden = error.code === "UNAUTHENTICATED";
    problem(error);
    return;
  }
  credentials.hidden = again.hidden = true;
  const { text, panels: states } = readAddress();
  source.value ||= text; // text typed while the page connected has precedence
  compare.checked ||= states.length === 2;
  open(compare.checked ? 2 : 1, states.map((state) => ({ ...state, text })));
  for (const panel of panels) if (panel.isKept) panel.answer();
  ask();
}

source.addEventListener("input", () => {
  clearTimeout(waiting);
  if (typing.checked) waiting = setTimeout(ask, PAUSE);
});
source.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
compare.addEventListener("change", () => {
  if (!served.length) return;
  for (const panel of panels) panel.keeps = false;
  open(compare.checked ? 2 : 1);
  ask();
});
byId("share").addEventListener("click", () => copy(location.href, byId("share")));
// Its address would replace the one that holds the text and the settings.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  answers.focus();
});
addEventListener("hashchange", () => { source.value = ""; location.reload(); });
credentials.addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  connect();
});

byId("reconnect").addEventListener("click", () => { source.focus(); connect(); });

connect();
