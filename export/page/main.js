// A page that answers while one types, by a model that runs in it.

import { readAddress, writeAddress } from "./address.js";
import { drawAnswers } from "./answers.js";
import { drawAttention } from "./attention.js";
import { html } from "./dom.js";

const part = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });

let newest = 0; // number of the newest question
let busy = false; // a worker answers one question at a time; while it does, only the newest one waits
let answer = null;

function ask() {
  writeAddress({ text: part("source").value, panels: [] });
  newest += 1;
  send();
}

function send() {
  const text = part("source").value;
  if (busy) return;
  if (!text.trim()) return show(null);
  busy = true;
  worker.postMessage({ number: newest, text, beamSize: part("beam").value ? part("beam").valueAsNumber : 1 });
}

function show(given, milliseconds) {
  answer = given;
  part("problem").textContent = "";
  part("rivals").hidden = !answer || answer.hypotheses.length < 2;
  part("attention").hidden = true;
  part("measures").textContent = answer ? `${Math.round(milliseconds)} ms on this device; nothing is sent` : "";
  part("text").textContent = "";
  part("spoken").textContent = "";
  if (!answer) return;
  drawAnswers(part("best"), part("ranking"), answer, { decoding: {} }, choose);
  choose(0);
}

function choose(index) {
  const hypothesis = answer.hypotheses[index];
  part("text").textContent = (hypothesis.text || "(empty)") + (hypothesis.finishReason === "LENGTH" ? " …" : "");
  part("spoken").textContent = `Answer: ${hypothesis.text || "empty"}`;
  const rows = hypothesis.attention;
  part("attention").hidden = !rows.length || !rows[0].length;
  if (part("attention").hidden) return;
  const weights = { rows: rows.length, columns: rows[0].length, weights: rows.flat() };
  drawAttention(part("map"), part("caption"), answer.sourceTokens, hypothesis.tokens, weights);
}

function ready({ name, version, precision, beamSize, maxBeamSize, description, examples }) {
  document.title = name;
  part("name").textContent = name;
  part("state").textContent = `${description} Version ${version}, ${precision}, in this page.`.trim();
  Object.assign(part("beam"), { value: beamSize, max: maxBeamSize });
  part("examples").replaceChildren("Try ", ...examples.map(([text]) =>
    html("button", { type: "button", class: "quiet", dir: "auto", onclick: () => {
      part("source").value = text;
      ask();
    } }, text)));
  part("source").value ||= readAddress().text;
  send();
}

worker.onerror = () => { part("state").textContent = "The model could not be started."; };
worker.onmessage = ({ data }) => {
  if (data.ready) return ready(data.ready);
  if (data.failed) {
    part("state").textContent = `The model could not be loaded: ${data.failed}`;
    return;
  }
  busy = false;
  if (data.number !== newest) return send();
  show(data.answer ?? null, data.milliseconds);
  part("problem").textContent = data.problem ?? "";
};

// Its address would replace the one that holds the text.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  part("answer").focus();
});
addEventListener("hashchange", () => {
  part("source").value = readAddress().text;
  ask();
});
part("composer").addEventListener("submit", (event) => event.preventDefault());
part("source").addEventListener("input", ask);
part("beam").addEventListener("input", ask);
