// Elements from plain values. Text is always text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const html = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

// An element in the middle of a text that works as a button. A real one would be laid out as a box of its own, which
// reverses the words of texts that mix directions.
export function inlineButton(properties, ...children) {
  const button = html("span", { role: "button", tabindex: 0, ...properties }, ...children);
  button.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    button.click();
  });
  return button;
}

// Arrow keys, Home and End move the focus among elements that are one stop of the tabulator together.
export function oneStop(elements) {
  const focus = (index) => {
    const next = elements[Math.max(0, Math.min(elements.length - 1, index))];
    for (const element of elements) element.setAttribute("tabindex", element === next ? 0 : -1);
    next.focus();
  };
  elements.forEach((element, index) => {
    element.setAttribute("tabindex", index ? -1 : 0);
    element.addEventListener("keydown", (event) => {
      const to = {
        ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1,
        Home: 0, End: elements.length - 1,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      focus(to);
    });
  });
}
