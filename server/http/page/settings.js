// The decoding options that the playground offers, and the request that they make. An empty field takes the model's
// default.

import { html } from "./dom.js";

const FIELDS = [
  { name: "beamSize", label: "Beam size", step: 1, min: 1, max: (limits) => limits.maxBeamSize },
  { name: "numHypotheses", label: "Answers", step: 1, min: 1, max: (limits) => limits.maxNumHypotheses, first: 4 },
  { name: "lengthPenalty", label: "Length penalty", step: 0.1, min: 0, max: () => 10 },
  { name: "repetitionPenalty", label: "Repetition penalty", step: 0.1, min: 1, max: () => 10 },
  { name: "maxLength", label: "Longest answer", step: 1, min: 1, max: (limits) => limits.maxTargetTokens },
];
const SAMPLING = [
  { name: "temperature", label: "Temperature", step: 0.1, min: 0.1, max: () => 10 },
  { name: "topK", label: "Top k", step: 1, min: 0, max: () => 256 },
  { name: "topP", label: "Top p", step: 0.05, min: 0.05, max: () => 1 },
  { name: "seed", label: "Seed", step: 1, min: 0, max: () => undefined },
];

export class Settings {
  constructor(place, summary, onchange) {
    this.place = place;
    this.summary = summary;
    this.onchange = onchange;
    this.values = Object.fromEntries(FIELDS.filter((field) => field.first).map((field) => [field.name, field.first]));
    this.sampling = false;
  }

  // Draws the fields anew, with this model's limits and defaults.
  show(model) {
    this.model = model;
    const drawn = html("label", { class: "switch" }, html("input", {
      type: "checkbox", checked: this.sampling,
      onchange: (event) => { this.sampling = event.target.checked; this.show(model); this.changed(); },
    }), "Draw at random");
    const fields = this.sampling
      ? [...FIELDS.filter(({ name }) => name === "numHypotheses" || name === "maxLength"), ...SAMPLING]
      : FIELDS;
    this.place.replaceChildren(drawn, ...fields.map((field) => this.field(field)));
    this.describe();
  }

  field({ name, label, step, min, max }) {
    const standard = this.model.defaults[name];
    return html("label", {}, label, html("input", {
      type: "number", inputmode: "decimal", step, min, max: max(this.model.limits), value: this.values[name],
      placeholder: standard === undefined ? "" : Math.round(standard * 1000) / 1000,
      onchange: (event) => {
        if (event.target.value === "") delete this.values[name];
        else this.values[name] = Number(event.target.value);
        this.changed();
      },
    }));
  }

  changed() {
    this.describe();
    this.onchange();
  }

  describe() {
    const said = this.sampling ? ["drawn at random"] : [`beam ${this.decoding().beamSize ?? this.model.defaults.beamSize}`];
    this.summary.textContent = said.join(", ");
  }

  // Only what was set. A beam is at least as wide as the answers that are wanted of it.
  decoding() {
    const chosen = (fields) =>
      Object.fromEntries(fields.filter(({ name }) => name in this.values).map(({ name }) => [name, this.values[name]]));
    const { numHypotheses, maxLength } = this.values;
    if (this.sampling) return { numHypotheses, maxLength, sampling: chosen(SAMPLING) };
    const decoding = chosen(FIELDS);
    const beam = decoding.beamSize ?? this.model.defaults.beamSize;
    if (numHypotheses > beam) decoding.numHypotheses = beam;
    return decoding;
  }
}
