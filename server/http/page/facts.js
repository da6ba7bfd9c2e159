// The facts about a model: its purpose, its limits, its measured quality, and its certificate.

import { html, terms } from "./dom.js";
import { counted, number } from "./numbers.js";

const UNITS = { character: "characters", word: "symbols", bpe: "parts of words", unigram: "parts of words" };

export const hasAttention = ({ manifestJson, precision }) =>
  JSON.parse(manifestJson).graphs[precision].decoder_step.outputs.some(({ name }) => name === "attention");

export const takesTokens = ({ manifestJson }) => JSON.parse(manifestJson).source.tokens_only === true;

// False for a module or graphs of another kind, of which only the results are known.
export const hasOurLayers = ({ architecture }) => "attention.score" in architecture;

// One sentence: its description, or its data by its recipe.
export function purpose({ description, manifestJson }) {
  if (description) return description;
  const { source, target, data } = JSON.parse(manifestJson).provenance.recipe;
  if (!source?.tokenizer || !target?.tokenizer) return "";
  const learned = data?.fetch ? `, learned from the data set ${data.fetch}` : "";
  return `Reads ${UNITS[source.tokenizer] ?? "symbols"} and writes ${UNITS[target.tokenizer] ?? "symbols"}${learned}.`;
}

const list = (pairs) => html("dl", {}, ...terms(pairs.filter(([, value]) => value)));

// A metric once, with each value and how it was measured; a second value has only the differences of its protocol.
function quality(evaluation) {
  const metrics = [...new Set(evaluation.map(({ metric }) => metric))];
  return metrics.flatMap((metric) => {
    const values = evaluation.filter((each) => each.metric === metric);
    const parts = ({ numExamples, protocol }) => [counted(Number(numExamples), "example"), ...protocol.split("; ")];
    const first = parts(values[0]);
    return [
      html("dt", {}, metric.toUpperCase().replaceAll("_", " ")),
      ...values.map((each, place) => html("dd", {},
        html("b", {}, number(each.value)), " ",
        html("span", { class: "note" }, parts(each).filter((part) => !place || !first.includes(part)).join("; ")))),
    ];
  });
}

function certificate(model) {
  const manifest = JSON.parse(model.manifestJson);
  const issued = manifest.certificates.find(({ precision, provider }) => precision === model.precision && provider === model.provider);
  if (!issued) return null;
  const { tokens, grid } = issued;
  const range = (values) => `${Math.min(...values)} to ${Math.max(...values)}`;
  return list([
    ["Compared with", issued.reference === "pytorch" ? "the PyTorch model" : issued.reference],
    ["Decodings identical", `${number(tokens.num_identical)} of ${number(tokens.num_compared)}`],
    ["Same answer in any batch", issued.batch_invariant ? "yes, bit for bit" : "no"],
    ["Batches", range(grid.batch_sizes)],
    ["Source lengths", range(grid.source_lengths)],
    ["Beams", range(grid.beam_sizes)],
    ["Checked on", issued.host],
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
      ["Longest source", counted(limits.maxSourceTokens, "symbol")],
      ["Longest answer", counted(limits.maxTargetTokens, "symbol")],
      ["Widest beam", number(limits.maxBeamSize)],
    ]),
    model.evaluation.length ? html("h3", {}, "Measured quality") : null,
    model.evaluation.length ? html("dl", {}, ...quality(model.evaluation)) : null,
    checked && html("h3", {}, "Certificate"),
    checked,
  ].filter(Boolean);
}
