// The options of a request. They are the API's own, read from its document, so that all of them are here, with the names
// that errors have. An option that is not set takes the model's default.

import { schemas } from "./api.js";
import { html } from "./dom.js";

const NUM_ANSWERS = 4; // requested unless the beam is narrower
// The page sets these itself, by its symbols and its pictures.
const OWN = ["targetPrefix", "alternatives", "attention", "tokenLogProbs", "trace"];
const SIMPLE = ["integer", "number", "boolean", "string"];
const LIMITS = {
  beamSize: "maxBeamSize", numHypotheses: "maxNumHypotheses", minLength: "maxTargetTokens", maxLength: "maxTargetTokens",
};

const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());

// The number of a text; the text itself if the number would be rounded, as seeds above 2 ** 53 are.
const exact = (text) => Math.abs(Number(text)) > Number.MAX_SAFE_INTEGER ? text : Number(text);

export class Settings {
  // `values` are by the names of errors, in the request's message `decoding`, or with another's name before a dot:
  // beam_size, sampling.seed, output.replace_unknowns.
  constructor(place, summary, onchange) {
    this.place = place;
    this.summary = summary;
    this.onchange = onchange;
    this.values = {};
  }

  // Shows this model's limits and defaults; the fields are drawn when they are opened.
  show(model) {
    this.model = model;
    this.describe();
    if (this.isOpen) this.draw();
  }

  async open() {
    this.isOpen = true;
    await this.draw();
  }

  async draw() {
    let all;
    try {
      all = await schemas();
    } catch (error) {
      this.place.replaceChildren(html("p", { class: "problem" }, error.message));
      return;
    }
    const fields = (message, prefix) => Object.entries(all[message].properties)
      .map(([name, schema]) => [name, schema, SIMPLE.find((kind) => schema.type?.includes(kind))])
      .filter(([name, , kind]) => kind && !OWN.includes(name))
      .map(([name, schema, kind]) => this.field(name, schema, kind, `${prefix}${snake(name)}`));
    const group = (name, ...children) => html("fieldset", {}, html("legend", {}, name), ...children);
    this.place.replaceChildren(
      group("decoding", ...fields("DecodingOptions", "")),
      group("decoding.sampling: any of these draws the answers at random", ...fields("SamplingOptions", "sampling.")),
      group("output", ...fields("OutputOptions", "output.")),
      html("button", { type: "button", class: "quiet", onclick: () => { this.values = {}; this.changed(); this.draw(); } },
        "Back to the model's defaults"),
    );
  }

  field(name, schema, kind, key) {
    const id = `${this.place.id}-${key}`;
    const value = this.values[key];
    const set = (chosen) => {
      if (chosen === "") delete this.values[key];
      else this.values[key] = chosen;
      this.changed();
    };
    const common = { id, "aria-describedby": `${id}-about` };
    const isOn = this.model.defaults[name] === true;
    const input = kind === "boolean"
      ? html("input", {
        ...common, type: "checkbox", checked: value ?? isOn,
        onchange: ({ target: { checked } }) => set(checked === isOn ? "" : checked),
      })
      : html("input", {
        ...common, value, type: kind === "string" ? "text" : "number", inputmode: kind === "string" ? null : "decimal",
        dir: kind === "string" ? "auto" : null, step: kind === "integer" ? 1 : "any", min: schema.minimum,
        max: this.model.limits[LIMITS[name]] ?? schema.maximum,
        placeholder: this.standard(name),
        onchange: ({ target }) => set(kind === "string" || target.value === "" ? target.value : exact(target.value)),
      });
    return html("div", { class: "field" },
      html("label", { for: id }, snake(name)), input,
      html("small", { id: `${id}-about` }, schema.description));
  }

  // The value of an option that is not set.
  standard(name) {
    const value = { ...this.model.defaults, ...this.own() }[name];
    return typeof value === "number" ? Math.round(1000 * value) / 1000 : "";
  }

  // This page requests several answers, and a beam at least as wide as their number.
  own() {
    const { beam_size: width = this.model.defaults.beamSize, num_hypotheses: wanted } = this.values;
    const isDrawn = Object.keys(this.values).some((name) => name.startsWith("sampling."));
    const numHypotheses = wanted ?? Math.min(NUM_ANSWERS, isDrawn ? NUM_ANSWERS : width, this.model.limits.maxNumHypotheses);
    if (isDrawn) return { numHypotheses };
    return "beam_size" in this.values ? { numHypotheses } : { numHypotheses, beamSize: Math.max(width, numHypotheses) };
  }

  changed() {
    this.describe();
    for (const name of ["beamSize", "numHypotheses"]) {
      const input = document.getElementById(`${this.place.id}-${snake(name)}`);
      if (input) input.placeholder = this.standard(name);
    }
    this.onchange();
  }

  describe() {
    const set = Object.entries(this.values).map(([name, value]) => `${name} ${value}`);
    this.summary.textContent = set.join(", ") || `beam_size ${this.standard("beamSize")}, the model's defaults`;
  }

  // The messages `decoding` and `output` of a request, with only what was set.
  request() {
    const decoding = this.own();
    if (decoding.beamSize === this.model.defaults.beamSize) delete decoding.beamSize;
    const messages = { decoding, output: {} };
    for (const [key, value] of Object.entries(this.values)) {
      const [message, name] = key.includes(".") ? key.split(".") : ["decoding", key];
      const into = message === "sampling" ? (decoding.sampling ??= {}) : messages[message];
      if (into) into[camel(name)] = value;
    }
    return messages;
  }
}
