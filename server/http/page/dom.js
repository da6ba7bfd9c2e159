// Elements from plain values. Text is always text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("aria-") && value != null) element.setAttribute(name, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const html = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

// The items of a "dl".
export const terms = (pairs) => pairs.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);

// An element in the middle of a text that works as a button. A real one would be laid out as a box of its own, which
// reverses the words of texts that mix directions.
export function inlineButton(properties, ...children) {
  const { onclick } = properties;
  return html("span", { role: "button", tabindex: 0, onkeydown: onEnter(onclick), ...properties }, ...children);
}

// A listener for keys: those that press a button.
export const onEnter = (press) => (event) => {
  if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  press();
};

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

// Listeners of an element that shows something while it is pointed at or has the focus. When the pointer leaves, what has
// the focus is shown again.
let focused;
export const whilePointed = (show, rest) => ({
  onpointerenter: show,
  onpointerleave: () => (focused?.element === document.activeElement ? focused.show : rest)(),
  onfocus: ({ currentTarget: element }) => { focused = { element, show }; show(); },
  onblur: () => { focused = undefined; rest(); },
});
