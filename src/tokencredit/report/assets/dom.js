// Elements and number formats. Text enters the page as text nodes only.
const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
// Untrusted text inside a sentence, isolated so that right-to-left text cannot reorder the words around it.
const foreign = (text) => make("bdi", {}, String(text));
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = (value) => value !== null && value !== undefined;
const minus = (text) => text.replaceAll("-", "\u2212");

// A value that is not a number is shown unchanged.
const ofNumbers = (write) => (value) => (typeof value === "number" ? write(value) : known(value) ? String(value) : "\u2013");

const figure = ofNumbers((value) => {
  const size = Math.abs(value);
  if (value !== 0 && (size < 0.0005 || size >= 1e6)) return minus(value.toExponential(1));
  if (Number.isInteger(value)) return minus(String(value));
  return minus(size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(3));
});

const signed = (value) => (known(value) && value > 0 ? "+" : "") + figure(value);
const percent = ofNumbers((value) => minus((100 * value).toFixed(1)) + "\u202f%");
const points = ofNumbers((value) => `${minus((100 * value).toFixed(1))} points`);
const decimals = (places) => ofNumbers((value) => minus(value.toFixed(places)));
const correlation = decimals(3);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
