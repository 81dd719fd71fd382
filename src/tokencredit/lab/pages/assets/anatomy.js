// Where a credit goes wrong: a response drawn twice, on the colours of the truth and of the credit.
const EXAMPLE_LINES = [
  { name: "truth", label: "A*", needs: ["truth"], about: "A*: what the token did to the chance of success" },
  { name: "credit", label: "credit", needs: ["credit"], about: "credit: what the recipe tells the update to do" },
];
const KIND_WORDS = {
  undecided: "A* is not told apart from 0.",
  against: "The credit goes against A*.",
  agreeing: "The credit goes with A*.",
  missed: "The token decided something and receives nothing.",
};

function beginAnatomy(section) {
  const told = JSON.parse(section.querySelector("script").textContent);
  const [select, view, detail, key] = ["select", ".anatomy-view", ".detail", ".legend"].map((name) => section.querySelector(name));
  let lines = [];
  let places = new Map();
  let held = null;

  function tokenSpan(chosen, example, colouring, at) {
    const level = levelClass(measure(chosen.tokens, colouring, example, at), scaleOf(chosen, colouring), false);
    const astray = colouring.name === "credit" && ["against", "missed"].includes(example.kind[at]) ? " astray" : "";
    const span = make("span", { class: `t ${level}${astray}`, tabindex: -1 }, example.text[at] || "\u2205");
    places.set(span, { example, at, colouring });
    return span;
  }

  function exampleLine(chosen, example, colouring) {
    const spans = example.text.map((_, at) => tokenSpan(chosen, example, colouring, at));
    lines.push(spans);
    const broken = spans.flatMap((span, at) => (example.text[at].includes("\u23ce") ? [span, make("br")] : [span]));
    return make("li", { class: "response" }, make("span", { class: "verdict" }, colouring.label), make("span", { class: "line" }, ...broken));
  }

  function exampleCard(chosen, example) {
    const median = Math.floor((example.of + 1) / 2);
    const which = example.rank === 1 ? "Disagrees most" : `${example.rank === median ? "Typical: number" : "Number"} ${example.rank} of ${example.of}`;
    return make("article", { class: "prompt" },
      make("header", {}, make("h4", {}, which), make("p", {}, make("code", { class: "prompt-text" }, example.prompt)),
        make("p", { class: "facts" }, `${example.right ? "right" : "wrong"} response \u00b7 1 \u2212 cos = ${figure(example.disagreement)}`)),
      make("ol", { class: "responses" }, ...EXAMPLE_LINES.map((colouring) => exampleLine(chosen, example, colouring))));
  }

  function showRecipe() {
    const row = told.rows[Number(select.value)];
    const examples = row.examples.map((one) => ({ ...told.responses[one.response], ...one, method: row.method, count: one.credit.length }));
    const data = { responses: examples, value: (name, example, at) => example[name][at], has: () => true };
    const chosen = { tokens: data, scales: new Map() };
    lines = [];
    places = new Map();
    held = null;
    view.replaceChildren(...examples.map((example) => exampleCard(chosen, example)));
    key.replaceChildren(...EXAMPLE_LINES.map((colouring) => make("p", {}, ...legend(chosen, colouring))));
    lines[0][0].tabIndex = 0;
    showHelp();
  }

  function showHelp() {
    markPair(null);
    const row = (keys, what) => [make("dt", {}, ...keys.map((name) => make("kbd", {}, name))), make("dd", {}, what)];
    detail.replaceChildren(make("p", { class: "quiet" }, "Point at a token, or click one and move with the keyboard:"),
      make("dl", { class: "keys" }, ...row(["\u2190", "\u2192"], "token before, after"), ...row(["\u2191", "\u2193"], "same token in the line above, below"),
        ...row(["Home", "End"], "first, last token"), ...row(["Esc"], "let go")));
  }

  // The same token in the other line of its response.
  function markPair(span) {
    for (const other of view.querySelectorAll(".pair")) other.classList.remove("pair");
    if (!span) return;
    const { example, at } = places.get(span);
    for (const [other, place] of places) if (other !== span && place.example === example && place.at === at) other.classList.add("pair");
  }

  function numbers({ example, at }) {
    const credits = { [example.method]: example.credit[at], [told.baseline]: example.baseline_credit[at] };
    const largest = Math.max(...Object.values(credits).map((credit) => Math.abs(credit ?? 0)));
    const bar = (value, most) => (known(value) ? sideBar(value, most) : null);
    const row = (label, value, drawn) => [make("dt", {}, foreign(label)), make("dd", {}, drawn ?? null, make("span", {}, value))];
    const part = (title, ...rows) => make("section", {}, make("h4", {}, title), make("dl", {}, ...rows.flat()));
    return [
      part("The truth", row("A*", signed(example.truth[at]), bar(example.truth[at], 1)), row("standard error", figure(example.standard_error[at]))),
      part("Credit", ...Object.entries(credits).map(([method, credit]) => row(method, signed(credit), bar(credit, largest)))),
      part("The policy", row("probability", chance(Math.log(example.probability[at])))),
    ];
  }

  function showToken(span) {
    const place = places.get(span);
    const { example, at } = place;
    markPair(span);
    detail.replaceChildren(
      make("header", {}, make("code", { class: "glyph" }, example.text[at] || "\u2205"),
        make("p", {}, make("b", {}, foreign(example.token_class[at])), make("span", {}, `token ${at + 1} of ${example.text.length}`))),
      make("p", { class: "shared-told" }, KIND_WORDS[example.kind[at]] ?? "A* is not known here."), ...numbers(place));
  }

  function hold(span) {
    for (const other of view.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    span.tabIndex = 0;
    held = span;
    const { example, at } = places.get(span);
    span.setAttribute("aria-label", `${example.text[at]}, token ${at + 1}, A* ${signed(example.truth[at])}, credit ${signed(example.credit[at])}`);
    showToken(span);
  }

  function moveFocus(event) {
    const line = lines.findIndex((spans) => spans.includes(event.target));
    if (line < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = lines[line].indexOf(event.target);
    const along = lines.flat();
    const beside = (other) => other?.[Math.min(at, other.length - 1)];
    const moves = {
      ArrowLeft: () => along[along.indexOf(event.target) - 1],
      ArrowRight: () => along[along.indexOf(event.target) + 1],
      ArrowUp: () => beside(lines[line - 1]),
      ArrowDown: () => beside(lines[line + 1]),
      Home: () => lines[line][0],
      End: () => lines[line].at(-1),
      Escape: () => {
        event.target.blur();
        held = null;
        showHelp();
      },
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]()?.focus();
  }

  select.replaceChildren(...told.rows.map((row, place) => make("option", { value: place }, [row.method, ...row.others].join(" = "))));
  select.addEventListener("change", showRecipe);
  // Without a movement it is the page that moved under a resting pointer.
  view.addEventListener("mousemove", ({ target, movementX, movementY }) => (movementX || movementY) && places.has(target) && showToken(target));
  view.addEventListener("mouseleave", () => (held ? hold(held) : showHelp()));
  view.addEventListener("focusin", ({ target }) => places.has(target) && hold(target));
  view.addEventListener("click", ({ target }) => places.has(target) && target.focus());
  view.addEventListener("keydown", moveFocus);
  showRecipe();
}

for (const section of document.querySelectorAll(".anatomy")) beginAnatomy(section);
