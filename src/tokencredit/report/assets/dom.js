// Elements, and numbers as people read them. Text only ever enters the page as text nodes.
const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = (value) => value !== null && value !== undefined;
const minus = (text) => text.replaceAll("-", "\u2212");

function figure(value) {
  if (!known(value)) return "\u2013";
  const size = Math.abs(value);
  if (value !== 0 && (size < 0.0005 || size >= 1e6)) return minus(value.toExponential(1));
  if (Number.isInteger(value)) return minus(String(value));
  return minus(size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(3));
}

const signed = (value) => (known(value) && value > 0 ? "+" : "") + figure(value);
const percent = (value) => (known(value) ? minus((100 * value).toFixed(1)) + "\u202f%" : "\u2013");
const points = (value) => (known(value) ? `${minus((100 * value).toFixed(1))} points` : "\u2013");
const decimals = (places) => (value) => (known(value) ? minus(value.toFixed(places)) : "\u2013");
const correlation = decimals(3);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
