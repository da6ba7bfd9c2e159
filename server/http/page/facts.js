// What is known of a model: what it is, its limits, what was measured, and what its certificate says.

import { html } from "./dom.js";

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 2 });

function list(pairs) {
  const items = pairs.filter(([, value]) => value).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);
  return html("dl", {}, ...items);
}

function quality(evaluation) {
  const rows = evaluation.map((one) =>
    html(
      "tr", {},
      html("th", { scope: "row" }, one.metric.toUpperCase()),
      html("td", {}, number(one.value)),
      html("td", {}, number(Number(one.numExamples))),
      html("td", { class: "protocol" }, one.protocol),
    ),
  );
  const head = ["Metric", "Value", "Examples", "How"].map((name) => html("th", { scope: "col" }, name));
  return html(
    "div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Measured quality" },
    html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows)),
  );
}

function certificate(model) {
  const manifest = JSON.parse(model.manifestJson);
  const found = manifest.certificates.find((one) => one.precision === model.precision && one.provider === model.provider);
  if (!found) return null;
  const { tokens, grid } = found;
  const range = (values) => `${Math.min(...values)} to ${Math.max(...values)}`;
  return list([
    ["Compared with", found.reference === "pytorch" ? "the PyTorch model" : found.reference],
    ["Decodings identical", `${number(tokens.num_identical)} of ${number(tokens.num_compared)}`],
    ["Same answer in any batch", found.batch_invariant ? "yes, bit for bit" : "no"],
    ["Batches", range(grid.batch_sizes)],
    ["Source lengths", range(grid.source_lengths)],
    ["Beams", range(grid.beam_sizes)],
    ["Checked on", found.host],
  ]);
}

export function facts(model) {
  const about = model.architecture;
  const { limits } = model;
  const checked = certificate(model);
  return [
    list([
      ["Name", model.name],
      ["Version", model.version],
      ["Runs as", `${model.precision} on ${model.provider}`],
      ["Cell", about.cell],
      ["Attention", about["attention.score"]],
      ["Hidden units", about.hidden_size],
      ["Layers", [about["encoder.num_layers"], about["decoder.num_layers"]].filter(Boolean).join(" + ")],
      ["Vocabularies", `${number(model.sourceVocabularySize)} and ${number(model.targetVocabularySize)} symbols`],
      ["Longest source", `${number(limits.maxSourceTokens)} symbols`],
      ["Longest answer", `${number(limits.maxTargetTokens)} symbols`],
      ["Widest beam", number(limits.maxBeamSize)],
    ]),
    model.evaluation.length ? html("h3", {}, "Measured quality") : null,
    model.evaluation.length ? quality(model.evaluation) : null,
    checked && html("h3", {}, "Certificate"),
    checked,
  ].filter(Boolean);
}
