// The shown text, models and settings as an address. They follow its "#", which browsers send to no server.

// A value in an address: a text that looks like a number is in quotation marks.
const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
};
const written = (value) =>
  typeof value !== "string" ? JSON.stringify(value) : parsed(value) === value ? value : JSON.stringify(value);

// The list in an address, or an empty one.
const list = (text) => [parsed(text ?? "[]")].filter(Array.isArray).flat();

const OWN = ["text", "model", "version", "prefix", "masked", "kept", "open"];
const TWO = ".2";

// {text, panels: [{model, version, prefix, masked, kept, open, options}]}: options are settings by name; `kept` is the
// text of an answer that does not follow `text`.
export function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const panel = (suffix) => {
    const names = [...parameters.keys()].filter((name) => name.endsWith(TWO) === Boolean(suffix));
    const plain = Object.fromEntries(names.map((name) => [name.slice(0, name.length - suffix.length), parameters.get(name)]));
    return {
      model: plain.model,
      version: plain.version,
      prefix: list(plain.prefix).map(String),
      masked: list(plain.masked).filter(Number.isInteger),
      kept: plain.kept,
      open: plain.open?.split(",") ?? [],
      options: Object.fromEntries(
        Object.entries(plain).filter(([name]) => !OWN.includes(name)).map(([name, value]) => [name, parsed(value)]),
      ),
      isNamed: names.length > 0,
    };
  };
  return { text: parameters.get("text") ?? "", panels: [panel(""), panel(TWO)].filter((each, place) => !place || each.isNamed) };
}

export function writeAddress({ text, panels }) {
  const shown = new URLSearchParams();
  if (text) shown.set("text", text);
  panels.forEach(({ model, version, prefix, masked, kept, open, options }, place) => {
    const suffix = place ? TWO : "";
    if (model) shown.set(`model${suffix}`, model);
    if (version) shown.set(`version${suffix}`, version);
    for (const [name, value] of Object.entries(options)) shown.set(`${name}${suffix}`, written(value));
    if (prefix.length) shown.set(`prefix${suffix}`, JSON.stringify(prefix));
    if (masked.length) shown.set(`masked${suffix}`, JSON.stringify(masked));
    if (kept !== undefined) shown.set(`kept${suffix}`, kept);
    if (open.length) shown.set(`open${suffix}`, open.join(","));
  });
  // Browsers refuse when a page does this too often.
  if (location.hash.slice(1) !== String(shown)) history.replaceState(null, "", `#${shown}`);
}

// Copies a text, and notes it on the button that was pressed. Browsers allow it only on pages that come encrypted or from
// this machine; elsewhere the text is shown to be copied by hand.
export async function copy(text, button) {
  const before = (button.dataset.name ??= button.textContent);
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    prompt("Copy this:", text);
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}
