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
    const panel = new Panel(served, number === 1 ? "Answer" : `Answer ${panels.length + 1}`, onproblem);
    panels.push(panel);
  }
  answers.classList.toggle("two", number === 2);
  answers.replaceChildren(...panels.map((panel) => panel.element));
}

async function connect() {
  const status = byId("server");
  try {
    served = await models();
  } catch (error) {
    status.textContent = error.message;
    onproblem(error);
    return;
  }
  credentials.hidden = true;
  status.textContent = served.map((model) => `${model.name} ${model.label}, ${model.precision} on ${model.provider}`).join("; ");
  panels = [];
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

connect();
