// The page: what is typed goes to one panel, or to two beside each other.

import { models, useToken } from "./api.js";
import { Panel } from "./panel.js";

const PAUSE = 120;

const byId = (id) => document.getElementById(id);
const [source, typing, compare, answers, credentials] =
  ["source", "typing", "compare", "answers", "credentials"].map(byId);

let panels = [];
let served = [];
let waiting;

function ask() {
  clearTimeout(waiting);
  for (const panel of panels) panel.ask(source.value);
}

function onproblem({ code }) {
  if (code !== "UNAUTHENTICATED") return;
  credentials.hidden = false;
  byId("token").focus();
}

function open(number) {
  panels = panels.slice(0, number);
  while (panels.length < number) {
    const name = number === 1 ? "Answer" : `Answer ${panels.length + 1}`;
    panels.push(new Panel(served, name, { onproblem, onstale: renew }));
  }
  answers.classList.toggle("two", number === 2);
  answers.replaceChildren(...panels.map((panel) => panel.element));
}

// Learns which models are served now, which may be others than when the page was opened.
async function renew() {
  served = await models();
  byId("server").textContent =
    served.map((model) => `${model.name} ${model.label}, ${model.precision} on ${model.provider}`).join("; ");
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
    onproblem(error);
    return;
  }
  credentials.hidden = again.hidden = true;
  open(compare.checked ? 2 : 1);
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
  open(compare.checked ? 2 : 1);
  ask();
});
credentials.addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  connect();
});

byId("reconnect").addEventListener("click", () => { byId("source").focus(); connect(); });

connect();
