// The numbers that tokens can be coloured by, and the mapping of a number to one of nine colour levels.
const LEVELS = 9;
const FULL_AT = 0.98;

const COLOURINGS = [
  { name: "credit", label: "credit", needs: ["credit"], about: "credit: the advantage that the update assigns to the token" },
  { name: "coefficient", label: "coefficient", needs: ["coefficient"], middle: 1, about: "coefficient: credit divided by the advantage of the response; 1 is neutral" },
  { name: "change_first", label: "change, first step", needs: ["change_first"], about: "measured change of log-prob after the first optimizer step" },
  { name: "change_step", label: "change, all steps", needs: ["change_step"], about: "measured change of log-prob after all optimizer steps" },
  { name: "predicted", label: "predicted", needs: ["predicted_step", "predicted_first"], any: true, about: "first-order prediction of the change of log-prob" },
  { name: "entropy", label: "entropy", needs: ["entropy"], unsigned: true, about: "entropy of the next-token distribution before the update, nats" },
  { name: "gain", label: "value gain", needs: ["value_before", "value_after"], about: "change of the success probability over the token" },
  { name: "right", label: "step correctness", needs: ["right"], truth: true, about: "whether the reasoning step that contains the token is right" },
];

const can = (data, colouring) => (colouring.any ? colouring.needs.some(data.has) : colouring.needs.every(data.has));

function measure(data, colouring, response, at) {
  if (colouring.name === "gain") {
    const [before, after] = colouring.needs.map((name) => data.value(name, response, at));
    return known(before) && known(after) ? after - before : null;
  }
  if (colouring.name === "right") {
    const right = data.value("right", response, at);
    return known(right) ? 2 * right - 1 : null;
  }
  const name = colouring.needs.find(data.has);
  const value = name ? data.value(name, response, at) : null;
  return known(value) ? value - (colouring.middle ?? 0) : null;
}

// The absolute value at which a colour is full: the 98th percentile, so that a few outliers do not fade the other tokens.
function scaleOf(chosen, colouring) {
  if (!chosen.scales.has(colouring.name)) {
    const sizes = [];
    for (const response of chosen.tokens.responses) {
      for (let at = 0; at < response.count; at += 1) {
        const value = measure(chosen.tokens, colouring, response, at);
        if (known(value)) sizes.push(Math.abs(value));
      }
    }
    sizes.sort((left, right) => left - right);
    const usual = sizes[Math.floor(FULL_AT * (sizes.length - 1))] ?? 0;
    chosen.scales.set(colouring.name, colouring.truth ? 1 : usual > 0 ? usual : sizes.at(-1) ?? 0);
  }
  return chosen.scales.get(colouring.name);
}

function levelClass(value, scale, unsigned) {
  if (!known(value)) return "unknown";
  if (value === 0 || scale === 0) return "level-0";
  const level = Math.max(1, Math.min(LEVELS, Math.ceil((LEVELS * Math.abs(value)) / scale)));
  return unsigned ? `size-${level}` : value > 0 ? `up-${level}` : `down-${level}`;
}

function legend(chosen, colouring) {
  if (colouring.truth) {
    const entry = (name, word) => make("span", { class: "legend-word" }, make("span", { class: `t ${name}` }, "7"), ` ${word}`);
    return [make("span", { class: "legend-about" }, colouring.about), entry("up-5", "right"), entry("down-5", "wrong"), entry("unknown", "unknown")];
  }
  const scale = scaleOf(chosen, colouring);
  const signs = colouring.unsigned ? [] : Array.from({ length: LEVELS }, (_, place) => `down-${LEVELS - place}`);
  const names = [...signs, "level-0", ...Array.from({ length: LEVELS }, (_, place) => `${colouring.unsigned ? "size" : "up"}-${place + 1}`)];
  const middle = colouring.middle ?? 0;
  const ends = colouring.unsigned ? ["0", figure(scale)] : [middle ? figure(middle - scale) : figure(-scale), middle ? figure(middle + scale) : signed(scale)];
  return [
    make("span", { class: "legend-about" }, colouring.about),
    make("span", { class: "ramp" }, make("span", {}, `${colouring.unsigned ? "" : "\u2264 "}${ends[0]}`),
      make("span", { class: "cells", "aria-hidden": "true" }, ...names.map((name) => make("span", { class: `t ${name}` }))),
      make("span", {}, `\u2265 ${ends[1]}`)),
  ];
}
