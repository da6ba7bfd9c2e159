// The attention map: a row per target symbol, a column per source symbol, in the order in which they are read. Hovering
// or focusing a symbol of either side shows where the other side looks; pressing one of the source hides it.

import { html, oneStop, onEnter, svg, whilePointed } from "./dom.js";
import { share } from "./numbers.js";
import { isRightToLeft, shown } from "./text.js";

const CELLS = { least: 18, most: 30 };
const GAP = 2;
const PADDING = 10;
const SHOWN = 4;
const LEAST_LINK = 0.01;
const NOTHING = "nothing in particular";
const FONT = "14px system-ui, sans-serif";

function widths(labels) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = FONT;
  return labels.map((label) => context.measureText(label).width);
}

// The largest weights with their labels, {weight, label}: the largest first, none less than `least`.
export const strongest = (weights, labels, least) => weights
  .map((weight, index) => ({ weight, label: labels[index] }))
  .filter(({ weight }) => weight >= least)
  .sort((a, b) => b.weight - a.weight)
  .slice(0, SHOWN);

const spoken = (links) => links.map(({ label, weight }) => `${label} ${share(weight)}`).join(", ") || NOTHING;

// `onmask` is called with the place of a source symbol that is pressed; without it, symbols are not pressed. `masked` are
// the places that are hidden.
export function drawAttention(place, caption, source, target, attention, { masked = [], onmask } = {}) {
  const [rows, columns] = [attention.rows, attention.columns];
  const weight = (row, column) => attention.weights[row * columns + column];
  const row = (index) => Array.from({ length: columns }, (_, column) => weight(index, column));
  const column = (index) => Array.from({ length: rows }, (_, each) => weight(each, index));
  const sources = source.map(shown);
  const targets = Array.from({ length: rows }, (_, index) => (index < target.length ? shown(target[index]) : "end"));

  // As large as there is room for.
  const left = Math.max(...widths(targets)) + PADDING;
  const cellSize = Math.max(CELLS.least, Math.min(CELLS.most, (place.clientWidth - left) / columns));
  const sourceWidths = widths(sources);
  const upright = sourceWidths.map((each) => each + GAP <= cellSize);
  const top = Math.max(CELLS.most, ...sourceWidths.filter((_, index) => !upright[index]).map((each) => each + PADDING));
  const [width, height] = [left + columns * cellSize, top + rows * cellSize];
  const isReversed = isRightToLeft(sources);
  const columnAt = (index) => left + (isReversed ? columns - 1 - index : index) * cellSize;
  const rest = "Point at a symbol, or move to it with the arrow keys, to see where the other side looks."
    + (onmask ? " Press one of the text to hide it from the model's attention." : "");

  const cells = [];
  const grid = svg("g", { "aria-hidden": "true" });
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) {
      if (!weight(y, x)) continue; // of another part of a long text, or hidden
      const cell = svg("rect", {
        class: "cell", x: columnAt(x), y: top + y * cellSize, width: cellSize - GAP, height: cellSize - GAP, rx: 4,
        "fill-opacity": Math.max(0.04, weight(y, x)).toFixed(3),
      });
      cells.push({ cell, x, y });
      grid.append(cell);
    }
  }

  function label(text, side, index) {
    const box = side === "source"
      ? { x: columnAt(index), y: 0, width: cellSize - GAP, height: top - GAP }
      : { x: 0, y: top + index * cellSize, width: left - GAP, height: cellSize - GAP };
    const middle = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    const written = side === "target"
      ? { x: box.width - PADDING / 2, y: middle.y, "text-anchor": "end" }
      : upright[index]
        ? { x: middle.x, y: top - CELLS.most / 2, "text-anchor": "middle" }
        : { x: PADDING / 2 - top, y: middle.x, transform: "rotate(-90)" };
    const [verb, links] = side === "target"
      ? ["looks at", strongest(row(index), sources, LEAST_LINK)]
      : ["is looked at by", strongest(column(index), targets, LEAST_LINK)];
    const begin = () => light(side, index, [text, verb, links]);
    const isMasked = side === "source" && masked.includes(index);
    const press = side === "source" && onmask
      ? { role: "button", "aria-pressed": isMasked, onclick: () => onmask(index), onkeydown: onEnter(() => onmask(index)) }
      : { role: "img" };
    return svg(
      "g",
      {
        class: isMasked ? "symbol masked" : "symbol", "aria-label": `${text} ${isMasked ? "is hidden" : `${verb} ${spoken(links)}`}`,
        ...whilePointed(begin, end), ...press,
      },
      svg("rect", { class: "behind", rx: 4, ...box }),
      svg("text", { "dominant-baseline": "central", ...written }, text),
    );
  }

  const labels = {
    source: sources.map((text, index) => label(text, "source", index)),
    target: targets.map((text, index) => label(text, "target", index)),
  };

  function shade(label, weight) {
    label.firstChild.setAttribute("fill-opacity", weight.toFixed(3));
    label.classList.toggle("lit", weight > 0.5);
  }

  function light(side, index, looks) {
    const [other, weights] = side === "source" ? ["target", column(index)] : ["source", row(index)];
    for (const { cell, x, y } of cells) cell.classList.toggle("dim", (side === "source" ? x : y) !== index);
    labels[side].forEach((each, at) => each.classList.toggle("chosen", at === index));
    labels[other].forEach((each, at) => shade(each, weights[at]));
    const [text, verb, links] = looks;
    // Each symbol in an element of its own, so that its direction is not that of the sentence.
    const parts = links.flatMap(({ label, weight }, at) => [at ? ", " : "", html("bdi", {}, label), ` ${share(weight)}`]);
    caption.replaceChildren(html("bdi", {}, text), ` ${verb} `, ...(parts.length ? parts : [NOTHING]));
  }

  function end() {
    for (const { cell } of cells) cell.classList.remove("dim");
    for (const each of [...labels.source, ...labels.target]) {
      each.classList.remove("chosen");
      shade(each, 0);
    }
    caption.textContent = rest;
  }

  const group = (side, name) => svg("g", { role: "group", "aria-label": name }, ...labels[side]);
  const picture = svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Attention map" },
    grid, group("source", "Source symbols"), group("target", "Target symbols"),
  );
  oneStop(labels.source);
  oneStop(labels.target);
  place.replaceChildren(picture);
  end();
}
