// A beam as a tree: a column per step, its hypotheses as branches, as wide as their symbols are probable. Those that were
// cut are faded, with the reason; the way to the answer is marked.

import { html, oneStop, svg, whilePointed } from "./dom.js";
import { fixed, probability } from "./numbers.js";
import { shown } from "./text.js";
import { ending, FATES, searchOf } from "./trace.js";

const NUM_CUT = 4; // of each step: those that came nearest
const [COLUMN, ROW, WIDTH, HEIGHT] = [118, 30, 88, 24];
const [THIN, THICK] = [1, 9];

// The nodes of the tree: {column, row, token, logProb, total, fate, parent}. The first column is the empty hypothesis; a
// column has the live hypotheses, those that ended, and the best of those that were cut.
function nodesOf(search) {
  const root = { column: 0, row: 0, token: "", logProb: 0, total: 0, fate: "FATE_LIVES" };
  const columns = [[root]];
  search.steps.forEach((step, at) => {
    const parents = columns[at].filter(({ fate }) => fate === "FATE_LIVES");
    const made = step.live.flatMap(({ candidates }, live) =>
      candidates.map((candidate) => ({ ...candidate, column: at + 1, parent: parents[live] })));
    const lives = (search.steps[at + 1]?.live ?? []).map(({ parent, token }) =>
      made.find((node) => node.parent === parents[parent] && node.token === token && node.fate === "FATE_LIVES"));
    const ended = made.filter(({ fate }) => fate === "FATE_ENDED");
    const cut = made.filter(({ fate }) => fate !== "FATE_LIVES" && fate !== "FATE_ENDED")
      .sort((a, b) => b.total - a.total).slice(0, NUM_CUT);
    columns.push([...lives, ...ended, ...cut].map((node, row) => ({ ...node, row })));
  });
  return columns;
}

export function drawTree(place, response, index) {
  const { search, end, way } = searchOf(response.trace, index);
  const columns = nodesOf(search);
  const isOnWay = (node) => node.fate === "FATE_LIVES"
    ? way[node.column] === node.row
    : node.fate === "FATE_ENDED" && end?.step === node.column - 1 && way[end.step] === node.parent.row;
  const left = ({ column }) => column * COLUMN;
  const middle = ({ row }) => row * ROW + ROW / 2;
  const edges = svg("g", { "aria-hidden": "true" });
  const caption = html("figcaption", { "aria-live": "polite" });
  const rest = () => { caption.textContent = ending(search); light([]); };
  const drawn = new Map();

  function light(nodes) {
    for (const [node, parts] of drawn) for (const part of parts) part.classList.toggle("lit", nodes.includes(node));
  }

  const groups = columns.map((nodes, column) => svg("g", { role: "group", "aria-label": `Step ${column}` },
    ...nodes.filter(({ parent }) => parent).map((node) => {
      const name = shown(node.token);
      const fate = FATES[node.fate] ?? "";
      const about = `${name}, ${probability(node.logProb)}, log P ${fixed(node.total)}, ${fate}`;
      const kind = `${node.fate === "FATE_LIVES" || node.fate === "FATE_ENDED" ? "" : "cut"} ${isOnWay(node) ? "chosen" : ""}`;
      const [from, to] = [left(node.parent) + WIDTH, left(node)];
      const bend = (from + to) / 2;
      const path = `M${from} ${middle(node.parent)}C${bend} ${middle(node.parent)} ${bend} ${middle(node)} ${to} ${middle(node)}`;
      const edge = svg("path", { class: `branch ${kind}`, d: path, "stroke-width": THIN + (THICK - THIN) * Math.exp(node.logProb) });
      edges.append(edge);
      const ancestors = [];
      for (let each = node; each.parent; each = each.parent) ancestors.unshift(each);
      const begin = () => {
        light(ancestors);
        caption.replaceChildren(html("bdi", {}, ancestors.map(({ token }) => shown(token)).join(" ")), `: ${about.slice(name.length + 2)}.`);
      };
      const drawnNode = svg("g", {
        class: `node symbol ${kind} ${node.fate === "FATE_ENDED" ? "ended" : ""}`, role: "img", "aria-label": about,
        ...whilePointed(begin, rest),
      },
      svg("rect", { class: "behind", x: left(node), y: middle(node) - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 5 }),
      svg("text", { x: left(node) + WIDTH / 2, y: middle(node), "text-anchor": "middle", "dominant-baseline": "central" },
        name.length > 9 ? `${name.slice(0, 8)}…` : name));
      drawn.set(node, [drawnNode, edge]);
      return drawnNode;
    })));
  const start = svg("text", { class: "small", x: WIDTH, y: middle(columns[0][0]), "text-anchor": "end", "dominant-baseline": "central" }, "start");
  const [width, height] = [columns.length * COLUMN, Math.max(...columns.map((nodes) => nodes.length)) * ROW];
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Tree of the beam" },
    edges, start, ...groups);
  oneStop(groups.flatMap((group) => [...group.children]));
  place.replaceChildren(
    html("p", { class: "note" }, "Each column is a step. A branch is as wide as its symbol is probable after what is before it. Dark: the answer. "
      + "Thick frame: ended. Faded: cut; point at it, or move to it with the arrow keys, for the reason."),
    html("figure", {}, html("div", { class: "map tree" }, picture), caption));
  rest();
}
