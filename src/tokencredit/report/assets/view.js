// The token view: a few prompts at a time, every response a line.
const PROMPTS_AT_ONCE = 4;
const CHARACTERS_AT_ONCE = 20000;
const SHORT_LINE = 110;

const view = { chosen: null, page: 0, by: "credit", filter: "all", sort: null, wrap: null, lines: [], places: new Map(), held: null, pointed: null, limits: new Map() };

const colouringNow = () => COLOURINGS.find((colouring) => colouring.name === view.by);

function flipShare(data, prompt) {
  if (prompt.flip === undefined) {
    const band = deadBand(view.chosen.about);
    let [moved, against] = [0, 0];
    for (const response of prompt.responses) {
      for (let at = 0; at < response.count; at += 1) {
        const [credit, change] = [data.value("credit", response, at), data.value("change_step", response, at)];
        if (known(change) && credit) {
          moved += 1;
          against += Math.abs(change) > band && credit * change < 0 ? 1 : 0;
        }
      }
    }
    prompt.flip = moved ? against / moved : null;
  }
  return prompt.flip;
}

// Default order: by flips if the step was diagnosed, else by number.
const sortNow = () => (view.chosen.tokens.has("change_step") ? view.sort ?? "flip" : view.sort === "surprise" ? "surprise" : "number");

function leastLikely(data, prompt) {
  if (prompt.least === undefined) {
    prompt.least = 0;
    for (const response of prompt.responses) {
      for (let at = 0; at < response.count; at += 1) prompt.least = Math.min(prompt.least, data.value("logp", response, at) ?? 0);
    }
  }
  return prompt.least;
}

const passes = (response) => view.filter === "all" || response.verdict === view.filter;

function hasNumber(data, response) {
  for (let at = 0; at < response.count; at += 1) if (known(measure(data, colouringNow(), response, at))) return true;
  return false;
}

function promptsInOrder(data) {
  const some = data.prompts.filter((prompt) => prompt.responses.some(passes));
  const keys = { number: (prompt) => prompt.group, flip: (prompt) => -(flipShare(data, prompt) ?? -1), surprise: (prompt) => leastLikely(data, prompt) };
  // Prompts without values of the chosen colouring come last.
  const blank = (prompt) => (prompt.responses.some((response) => hasNumber(data, response)) ? 0 : 1);
  return some.sort((one, other) => blank(one) - blank(other) || keys[sortNow()](one) - keys[sortNow()](other) || one.group - other.group);
}

// Spans for at most `limit` characters; a single token that is longer is cut.
function tokenSpans(data, response, limit) {
  const { own, forks } = branches(data, response);
  const colouring = colouringNow();
  const scale = scaleOf(view.chosen, colouring);
  const spans = [];
  let left = limit;
  let at = 0;
  for (; at < response.count && left > 0; at += 1) {
    const whole = data.text(response, at);
    const text = whole.length > left ? `${whole.slice(0, left)}\u2026` : whole;
    left -= Math.max(1, whole.length);
    const branch = at === own && at > 0 ? " branch" : forks.has(at) ? " fork" : "";
    const kind = `t ${levelClass(measure(data, colouring, response, at), scale, colouring.unsigned)}${at < own ? " shared" : ""}${branch}`;
    const span = make("span", { class: kind, tabindex: -1 }, text || "\u2205");
    view.places.set(span, { response, at });
    spans.push(span);
    if (whole.includes("\u23ce")) spans.push(make("br"));
  }
  return { spans, cut: left < 0 || at < response.count };
}

function characters(data, response) {
  let total = 0;
  for (let at = 0; at < response.count; at += 1) total += Math.max(1, data.text(response, at).length);
  return total;
}

function responseLine(data, response, limit) {
  const allowed = view.limits.get(response) ?? limit;
  const { spans, cut } = tokenSpans(data, response, allowed);
  const marks = { right: "\u2713", wrong: "\u2715", ungraded: "?" };
  const line = make("span", { class: "line" }, ...spans);
  const item = make("li", { class: `response ${response.verdict}` },
    make("span", { class: "verdict" }, make("span", { "aria-hidden": "true" }, marks[response.verdict]), ` ${response.verdict}`),
    line,
    make("span", { class: "advantage", title: "advantage of the response" }, known(response.advantage) ? `A ${signed(response.advantage)}` : ""));
  if (cut) {
    const rest = characters(data, response) - allowed;
    const more = make("button", { type: "button", class: "more" }, `show more (${plural(rest, "character")} left)`);
    more.addEventListener("click", () => {
      view.limits.set(response, allowed * 4);
      renderView();
    });
    line.append(more);
  }
  if (!cut && response.length > response.count) {
    line.append(make("span", { class: "elsewhere" }, ` ${plural(response.length - response.count, "further token")} in the run folder`));
  }
  view.lines.push({ response, spans: spans.filter((span) => view.places.has(span)) });
  return item;
}

function promptText(prompt) {
  const limit = view.limits.get(prompt) ?? 600;
  const text = make("code", { class: "prompt-text" }, prompt.text.length > limit ? `${prompt.text.slice(0, limit)}\u2026` : prompt.text);
  if (prompt.text.length <= limit) return [text];
  const more = make("button", { type: "button", class: "more" }, `show more (${plural(prompt.text.length - limit, "character")} left)`);
  more.addEventListener("click", () => {
    view.limits.set(prompt, limit * 4);
    renderView();
  });
  return [text, more];
}

function promptCard(data, prompt, limit) {
  const shown = prompt.responses.filter(passes);
  const right = prompt.responses.filter((response) => response.verdict === "right").length;
  const flip = flipShare(data, prompt);
  const facts = [`${right} of ${prompt.responses.length} right`];
  if (known(flip)) facts.push(`${percent(flip)} of tokens moved against their credit`);
  if (sortNow() === "surprise") facts.push(`least likely token: p = ${figure(Math.exp(leastLikely(data, prompt)))}`);
  return make("article", { class: "prompt", "data-group": prompt.group },
    make("header", {}, make("h3", {}, `Prompt ${prompt.group}`), make("p", {}, ...promptText(prompt)), make("p", { class: "facts" }, facts.join(" \u00b7 "))),
    make("div", { class: "lines" }, make("ol", { class: "responses" }, ...shown.map((response) => responseLine(data, response, limit)))));
}

function renderView() {
  const data = view.chosen?.tokens;
  view.lines = [];
  view.places = new Map();
  view.held = null;
  view.pointed = null;
  if (!data) {
    $("view").replaceChildren(make("p", { class: "quiet" }, "No tokens were recorded at this step."));
    $("legend").replaceChildren();
    $("pager").hidden = true;
    return;
  }
  const ordered = promptsInOrder(data);
  const pages = Math.max(1, Math.ceil(ordered.length / PROMPTS_AT_ONCE));
  view.page = Math.min(view.page, pages - 1);
  const first = view.page * PROMPTS_AT_ONCE;
  const prompts = ordered.slice(first, first + PROMPTS_AT_ONCE);
  const responses = prompts.flatMap((prompt) => prompt.responses.filter(passes));
  const limit = Math.max(200, Math.min(1200, Math.floor(CHARACTERS_AT_ONCE / Math.max(1, responses.length))));
  $("wrap").checked = view.wrap ?? responses.some((response) => characters(data, response) > SHORT_LINE);
  $("view").classList.toggle("wrapped", $("wrap").checked);
  $("view").replaceChildren(...(prompts.length ? prompts.map((prompt) => promptCard(data, prompt, limit)) : [make("p", { class: "quiet" }, `No response at this step is ${view.filter}.`)]));
  $("legend").replaceChildren(...legend(view.chosen, colouringNow()));
  $("pager").hidden = ordered.length <= PROMPTS_AT_ONCE;
  $("page-range").textContent = `prompts ${first + 1}\u2013${first + prompts.length} of ${ordered.length}`;
  $("page-back").disabled = view.page === 0;
  $("page-on").disabled = view.page === pages - 1;
  const firstToken = view.lines[0]?.spans[0];
  if (firstToken) firstToken.tabIndex = 0;
  showKeys();
}

function recolour() {
  const colouring = colouringNow();
  const scale = scaleOf(view.chosen, colouring);
  for (const [span, { response, at }] of view.places) {
    const kept = [...span.classList].filter((name) => ["t", "shared", "branch", "fork"].includes(name));
    span.className = [...kept, levelClass(measure(view.chosen.tokens, colouring, response, at), scale, colouring.unsigned)].join(" ");
  }
  $("legend").replaceChildren(...legend(view.chosen, colouring));
}

function chooseStepOfView(chosen) {
  view.chosen = chosen;
  view.page = 0;
  view.limits = new Map();
  const data = chosen.tokens;
  const possible = COLOURINGS.filter((colouring) => data && can(data, colouring));
  if (!possible.some((colouring) => colouring.name === view.by)) view.by = possible[0]?.name ?? "credit";
  for (const input of $("colouring").querySelectorAll("input")) {
    const open = possible.some((colouring) => colouring.name === input.value);
    input.disabled = !open;
    input.checked = input.value === view.by;
    input.parentElement.title = open ? COLOURINGS.find((colouring) => colouring.name === input.value).about : "not measured at this step";
  }
  const measured = data?.has("change_step") ?? false;
  $("controls").querySelector("input[value=flip]").disabled = !measured;
  if (data) $("controls").querySelector(`input[value=${sortNow()}]`).checked = true;
  renderView();
}

function hold(span) {
  for (const other of $("view").querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
  span.tabIndex = 0;
  view.held = span;
  view.pointed = null;
  const { response, at } = view.places.get(span);
  span.setAttribute("aria-label", tokenLabel(view.chosen.tokens, response, at));
  showDetail(view.chosen.tokens, response, at);
}

function turnPage(by) {
  const before = view.page;
  view.page = Math.max(0, view.page + by);
  renderView();
  if (view.page !== before) $("tokens").scrollIntoView({ block: "start" });
  return view.page !== before;
}

function moveFocus(event) {
  const span = event.target.closest(".t");
  if (!span || !view.places.has(span)) return;
  const line = view.lines.findIndex((one) => one.spans.includes(span));
  const at = view.lines[line].spans.indexOf(span);
  const within = (wanted) => {
    const { spans } = view.lines[Math.max(0, Math.min(view.lines.length - 1, wanted))];
    return spans[Math.min(at, spans.length - 1)];
  };
  const along = view.lines.flatMap((one) => one.spans);
  const moves = {
    ArrowLeft: () => along[along.indexOf(span) - 1],
    ArrowRight: () => along[along.indexOf(span) + 1],
    ArrowUp: () => within(line - 1),
    ArrowDown: () => within(line + 1),
    Home: () => view.lines[line].spans[0],
    End: () => view.lines[line].spans.at(-1),
    PageUp: () => turnPage(-1) && view.lines[0]?.spans[0],
    PageDown: () => turnPage(1) && view.lines[0]?.spans[0],
    Escape: () => {
      span.blur();
      view.held = null;
      showKeys();
    },
  };
  if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  moves[event.key]()?.focus();
}

function beginView() {
  $("colouring").replaceChildren(...COLOURINGS.map((colouring) => make("label", {},
    make("input", { type: "radio", name: "by", value: colouring.name }), make("span", {}, colouring.label))));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("controls").addEventListener("change", ({ target }) => {
    if (target.name === "by") {
      view.by = target.value;
      const shown = [...$("view").querySelectorAll(".prompt")].map((card) => Number(card.dataset.group));
      const wanted = promptsInOrder(view.chosen.tokens).slice(view.page * PROMPTS_AT_ONCE).slice(0, PROMPTS_AT_ONCE);
      if (wanted.every((prompt, place) => prompt.group === shown[place])) recolour();
      else renderView();
      return;
    }
    if (target.id === "wrap") view.wrap = target.checked;
    else view[target.name] = target.value;
    view.page = target.id === "wrap" ? view.page : 0;
    renderView();
  });
  const pointed = (event) => (view.places.has(event.target) ? view.places.get(event.target) : null);
  // mousemove, because mouseover also fires when the page scrolls under a resting pointer.
  $("view").addEventListener("mousemove", (event) => {
    const place = pointed(event);
    if (!place || event.target === view.pointed || (event.movementX === 0 && event.movementY === 0)) return;
    view.pointed = event.target;
    showDetail(view.chosen.tokens, place.response, place.at);
  });
  $("view").addEventListener("mouseleave", () => (view.held ? hold(view.held) : showKeys()));
  $("view").addEventListener("focusin", (event) => pointed(event) && hold(event.target));
  $("view").addEventListener("click", (event) => pointed(event) && event.target.focus());
  $("view").addEventListener("keydown", moveFocus);
  $("page-back").addEventListener("click", () => turnPage(-1));
  $("page-on").addEventListener("click", () => turnPage(1));
}
