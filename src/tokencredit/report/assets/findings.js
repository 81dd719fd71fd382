// Findings: for each the note, the main numbers with their curve over the run, a chart for some, and tables of all numbers.
// `question`: one line. `first`: main numbers, each with its label and its format.
// `shares`: further numbers (by name) and columns (table/name) that are shares, shown in percent.
// `drawn`: tables that the panel already shows.
const FINDINGS = {
  flips: {
    title: "Flips",
    question: "Does the log-prob of each token move in the direction of its advantage?",
    first: [["step/band/positive/flip", "positive advantage, log-prob fell", percent], ["step/band/negative/flip", "negative advantage, log-prob rose", percent], ["step/band/similarity", "difference of the shares that rose", points]],
    panel: flipPanel,
    drawn: ["matrix"],
  },
  effect: {
    title: "Prediction and measurement",
    question: "How accurate are first-order predictions for this update?",
    first: [["first/correlation", "correlation, first optimizer step", correlation], ["step/correlation", "correlation, all optimizer steps", correlation], ["step/sign", "signs that agree, all optimizer steps", percent], ["step/slope", "slope, measured on predicted", decimals(2)]],
  },
  cancellation: {
    title: "Cancellation",
    question: "How much do the updates of better and worse responses to a token cancel, and how much cancellation is lost when siblings are in different optimizer steps?",
    shares: /^(mini\/)?(mass|mean)$|^by_(class|group)\/(mini_)?(mass|mean)$|\/cancellation$/,
    first: [["mass", "cancels over the batch", percent], ["mini/mass", "cancels within one optimizer step", percent], ["lost/mass", "lost by splitting siblings", points]],
    panel: cancellationPanel,
    drawn: ["amplified_and_damped"],
  },
  coupling: {
    title: "Coupling",
    question: "What moves a token: its own gradient, other occurrences of the same token, or different tokens?",
    shares: /^share\/|^pairs\/(low_of_)?same(_coupling)?$|^by_\w+\/(own|same|other)$/,
    first: [["share/own", "moved by the token itself", percent], ["share/same", "by other occurrences of the token", percent], ["share/other", "by different tokens", percent], ["outvoted", "own effect overruled by others", percent]],
    panel: couplingPanel,
    drawn: ["pairs"],
  },
  tax: {
    title: "Learning tax",
    question: "How much did the update change tokens from which there was nothing to learn?",
    shares: /^(format|certain|dead|any)\/(tokens|kl)$/,
    first: [["any/kl", "of KL at tokens with nothing to learn", percent], ["format/kl", "of KL at format tokens", percent], ["certain/kl", "of KL at near-certain tokens", percent], ["dead/kl", "of KL in dead groups", percent]],
  },
  drift: {
    title: "Drift",
    question: "How far apart does the update move responses to one prompt that have equal scores?",
    first: [["equal/absolute", "equal scores, nats", figure], ["unequal/mean", "better minus worse, nats", signed], ["ratio", "ratio of equal to unequal", figure]],
  },
  entropy: {
    title: "Entropy",
    question: "How did the update change the entropy, and is the entropy about to collapse?",
    first: [["current", "mean entropy, nats", figure], ["change", "change by this update", signed], ["slope", "per training step", signed], ["steps_to_floor", "steps until the floor", figure]],
  },
  masses: {
    title: "Masses",
    question: "How much of the credit is positive and negative, and how many prompts contribute to it?",
    shares: /^dead_groups$/,
    first: [["success_share", "of response mass is positive", percent], ["token_positive_share", "of token mass is positive", percent], ["effective_groups", "effective number of prompts", figure], ["dead_groups", "dead groups", percent]],
  },
  value: {
    title: "Token value",
    question: "Are the tokens that the update boosted worth more than those it suppressed?",
    first: [["positive/gain/difference", "gain, boosted minus suppressed, successes", signed], ["negative/gain/difference", "gain, boosted minus suppressed, failures", signed]],
  },
};
const ROWS_AT_ONCE = 12;
const TILES = 4;
const SHARES = /(^|[/_])(boosted|suppressed|unchanged|flip|share|outvoted|sign)$/;
const POINTS = /(^|\/)similarity$|^lost\/|\/lost_/;
const CORRELATIONS = /(^|[/_])(correlation|cosine)($|\/)/;

// Names come from files, so a name such as "constructor" must not find an inherited property.
const own = (table, name) => (table && Object.hasOwn(table, name) ? table[name] : undefined);
const isNumber = (value) => typeof value === "number";
const keyText = (key) => key.replaceAll("_", " ").replaceAll("/", " \u203a ");

function writtenAs(finding, key) {
  if (POINTS.test(key)) return points;
  if (SHARES.test(key) || own(FINDINGS, finding)?.shares?.test(key)) return percent;
  return CORRELATIONS.test(key) ? correlation : figure;
}

const amount = (finding, key, value) => (typeof value === "number" ? writtenAs(finding, key)(value) : value ?? "\u2013");
// A smaller range does not fill the full height, so that a nearly constant curve looks flat.
const leastRange = (written, low, high) => ([percent, points, correlation].includes(written) ? 0.02 : 0.02 * Math.max(Math.abs(low), Math.abs(high)));

function sparkline(name, key, label, written) {
  const lines = index.runs.map((run) => own(own(run.trends, name), key) ?? []);
  const points = lines.flat();
  if (!lines.some((line) => line.length > 1)) return null;
  const [left, right] = [Math.min(...points.map(([step]) => step)), Math.max(...points.map(([step]) => step))];
  const [low, high] = [Math.min(...points.map(([, value]) => value)), Math.max(...points.map(([, value]) => value))];
  const x = (step) => (2 + (96 * (step - left)) / (right - left || 1)).toFixed(1);
  const range = Math.max(high - low, leastRange(written, low, high)) || 1;
  const y = (value) => (12 - (20 * (value - (low + high) / 2)) / range).toFixed(1);
  const description = `${label} over training steps ${left} to ${right}, between ${written(low)} and ${written(high)}`;
  const here = lines[at.run].find(([step]) => step === at.step);
  const drawing = draw("svg", { class: "spark", viewBox: "0 0 100 24", role: "img", "aria-label": description },
    ...lines.map((line, run) => draw("polyline", { class: `stroke-series-${run % 6} dash-${index.runs.length > 1 ? run % 3 : 0}`, fill: "none", points: line.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") })),
    here ? draw("circle", { class: `fill-series-${at.run % 6}`, cx: x(here[0]), cy: y(here[1]), r: 1.7 }) : null);
  const ends = high > low ? [written(high), written(low)] : [written(high)];
  return make("div", { class: "spark-box" }, drawing, make("span", { class: "spark-ends", "aria-hidden": "true" }, ...ends.map((end) => make("span", {}, end))));
}

function tile(name, value, [key, label, written]) {
  const others = index.runs.length > 1 ? index.runs.map((run) => own(own(run.trends, name), key)?.find(([step]) => step === at.step)?.[1] ?? null) : null;
  return make("div", { class: "tile" },
    make("p", { class: "tile-label" }, label),
    others
      ? make("ul", { class: "tile-runs" }, ...others.map((one, run) => make("li", { class: `ink-series-${run % 6}` }, make("b", {}, written(one)), " ", foreign(index.runs[run].name))))
      : make("p", { class: "tile-value" }, written(value)),
    sparkline(name, key, label, written));
}

function plainTable(finding, name, rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const numeric = new Set(columns.filter((column) => rows.some((row) => typeof row[column] === "number")));
  const line = (row) => make("tr", {}, ...columns.map((column) => (column === "text"
    ? make("td", {}, make("code", { class: "token" }, String(row[column] ?? "")))
    : make("td", { class: numeric.has(column) ? "number" : null }, String(amount(finding, `${name}/${column}`, row[column]))))));
  const body = make("tbody", {}, ...rows.slice(0, ROWS_AT_ONCE).map(line));
  const table = make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...columns.map((column) => make("th", { scope: "col", class: numeric.has(column) ? "number" : null }, keyText(column))))), body);
  const rest = rows.slice(ROWS_AT_ONCE);
  const more = rest.length ? make("button", { type: "button", class: "more" }, `show ${plural(rest.length, "more row")}`) : null;
  more?.addEventListener("click", () => {
    body.append(...rest.map(line));
    more.remove();
  });
  return make("details", {}, make("summary", {}, foreign(keyText(name)), make("small", {}, ` ${plural(rows.length, "row")}`)), make("div", { class: "scroll" }, table), more);
}

function numbersTable(finding, numbers) {
  const rows = Object.entries(numbers).map(([key, value]) => make("tr", {}, make("th", { scope: "row" }, keyText(key)), make("td", { class: isNumber(value) ? "number" : null }, String(amount(finding, key, value)))));
  return make("details", {}, make("summary", {}, "all numbers", make("small", {}, ` ${rows.length}`)), make("table", { class: "plain numbers" }, make("tbody", {}, ...rows)));
}

// Shares of tokens that rose, stayed and fell, by the sign of the advantage. Moves against the advantage are framed.
function flipPanel({ tables }) {
  const rows = (tables.matrix ?? []).filter((row) => row.band > 0 && [row.band, row.boosted, row.suppressed].every(isNumber));
  const horizons = [...new Set(rows.map((row) => row.horizon))];
  if (!horizons.length) return null;
  const band = minus(rows[0].band.toExponential());
  const horizonText = { first: "after the first optimizer step", step: "after all optimizer steps" };
  const moves = { boosted: "rose", unchanged: `stayed (\u2264 ${band})`, suppressed: "fell" };
  const cell = (row, move) => {
    const flip = (row.side === "positive" && move === "suppressed") || (row.side === "negative" && move === "boosted");
    const kind = move === "unchanged" ? "size" : move === "boosted" ? "up" : "down";
    const level = Math.ceil(LEVELS * (row[move] ?? 0));
    return make("td", { class: `${level ? `${kind}-${level}` : "level-0"} heat${flip ? " flip" : ""}` }, percent(row[move]), flip ? make("small", {}, "flip") : null);
  };
  const counted = make("p", { class: "fine" }, `A token that moved by no more than ${band} nats counts as unmoved.`);
  return make("div", { class: "panels" }, ...horizons.map((horizon) => make("table", { class: "heat-table" }, make("caption", {}, own(horizonText, horizon) ?? keyText(String(horizon))),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "advantage"), ...Object.values(moves).map((word) => make("th", { scope: "col" }, word)), make("th", { scope: "col" }, "tokens"))),
    make("tbody", {}, ...rows.filter((row) => row.horizon === horizon).map((row) => make("tr", {}, make("th", { scope: "row" }, row.side), ...Object.keys(moves).map((move) => cell(row, move)), make("td", { class: isNumber(row.tokens) ? "number" : null }, figure(row.tokens))))))), counted);
}

const shareBar = (value, kind) => draw("svg", { class: "share-bar", viewBox: "0 0 100 7", preserveAspectRatio: "none", "aria-hidden": "true" },
  draw("rect", { class: "fill-grid", width: 100, height: 7 }), draw("rect", { class: kind, width: Math.max(0, Math.min(100, 100 * value)), height: 7 }));

function cancellationPanel({ tables }) {
  const rows = (tables.by_class ?? []).filter((row) => isNumber(row.mass) || isNumber(row.mini_mass));
  const pair = (row) => [["batch", row.mass, "fill-series-0"], ["optimizer step", row.mini_mass, "fill-series-4"]].filter(([, value]) => isNumber(value));
  const bars = rows.length ? make("table", { class: "bars" }, make("caption", {}, "share that cancels, by token class: over the batch, and within one optimizer step"),
    make("tbody", {}, ...rows.flatMap((row) => pair(row).map(([label, value, kind], place) => make("tr", { class: place ? null : "first" },
      place ? null : make("th", { scope: "rowgroup", rowspan: pair(row).length }, String(row.token_class)), make("td", {}, label), make("td", {}, shareBar(value, kind)), make("td", { class: "number" }, percent(value))))))) : null;
  const pushed = (tables.amplified_and_damped ?? []).filter((row) => isNumber(row.mean_effect));
  const list = (direction, sign) => {
    const some = pushed.filter((row) => row.direction === direction);
    const largest = Math.max(...pushed.map((row) => Math.abs(row.mean_effect)));
    return some.length ? make("table", { class: "bars pushed" }, make("caption", {}, `most ${direction}`), make("tbody", {}, ...some.map((row) => make("tr", {},
      make("th", { scope: "row" }, make("code", { class: "token" }, String(row.text))), make("td", {}, shareBar(Math.abs(row.mean_effect) / (largest || 1), sign)), make("td", { class: "number" }, signed(row.mean_effect)), make("td", { class: "number quiet" }, `\u00d7${isNumber(row.tokens) ? row.tokens : "?"}`))))) : null;
  };
  const panels = [bars, list("amplified", "fill-up"), list("damped", "fill-down")].filter(known);
  return panels.length ? make("div", { class: "panels" }, ...panels) : null;
}

function couplingPanel({ tables }) {
  const rows = (tables.pairs ?? []).filter((row) => isNumber(row.share));
  const kinds = [...new Set(rows.map((row) => row.identity))];
  const names = [...new Set(rows.flatMap((row) => [row.confidence, row.other_confidence]))];
  if (!kinds.length) return null;
  const strongest = Math.max(...rows.map((row) => row.share)) || 1;
  const heat = (kind) => {
    const found = (one, other) => rows.find((row) => row.identity === kind && row.confidence === one && row.other_confidence === other);
    return make("table", { class: "heat-table" }, make("caption", {}, foreign(kind), " tokens: share of all coupling"),
      make("thead", {}, make("tr", {}, make("th", {}), ...names.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...names.map((one) => make("tr", {}, make("th", { scope: "row" }, one), ...names.map((other) => {
        const row = found(one, other);
        if (!row) return make("td", { class: "heat" });
        const level = Math.ceil((LEVELS * row.share) / strongest);
        return make("td", { class: `heat ${level ? `size-${level}` : "level-0"}`, title: `${plural(row.pairs, "pair")}, mean size ${figure(row.mean_abs_kernel)}` }, percent(row.share));
      })))));
  };
  return make("div", { class: "panels" }, ...kinds.map(heat));
}

function findingCard(finding) {
  const kind = own(FINDINGS, finding.name) ?? { title: keyText(finding.name) };
  const numbers = finding.numbers ?? {};
  const usual = Object.keys(numbers).map((key) => [key, keyText(key), writtenAs(finding.name, key)]);
  const chosen = (kind.first ?? usual).filter(([key]) => known(numbers[key])).slice(0, TILES);
  const panel = kind.panel?.({ numbers, tables: finding.tables ?? {} }) ?? null;
  const tables = Object.entries(finding.tables ?? {}).filter(([name, rows]) => rows.length && !(panel && kind.drawn?.includes(name)));
  return make("article", { class: `finding${finding.name === "entropy" && numbers.level > 0 ? " warned" : ""}`, "data-finding": finding.name },
    make("h3", {}, kind.title), kind.question ? make("p", { class: "question" }, kind.question) : null, make("p", { class: "note" }, finding.note),
    chosen.length ? make("div", { class: "tiles" }, ...chosen.map((entry) => tile(finding.name, numbers[entry[0]], entry))) : null,
    panel,
    make("div", { class: "tables" }, ...tables.map(([name, rows]) => plainTable(finding.name, name, rows)), Object.keys(numbers).length > chosen.length ? numbersTable(finding.name, numbers) : null));
}

function showFindings(about) {
  const findings = about.findings ?? [];
  const order = Object.keys(FINDINGS);
  const place = (finding) => (order.includes(finding.name) ? order.indexOf(finding.name) : order.length);
  const method = about.method === "jvp" ? "jvp (forward-mode differentiation)" : about.method;
  const covered = about.looked_at ? `Predictions cover ${about.looked_at.groups} of ${plural(about.looked_at.of, "prompt")}. ` : "";
  const lead = findings.length
    ? [`At step ${at.step}`, ...(method ? [", predicted by ", foreign(method)] : []), `${about.rollouts ? `, with ${plural(about.rollouts, "extra rollout")}` : ""}. ${covered}Small curves show each number over the run${index.runs.length > 1 ? "s" : ""}.`]
    : ["This step was not diagnosed. The command tokencredit diagnose can do that for a stored run."];
  $("findings-lead").replaceChildren(...lead);
  $("finding-cards").replaceChildren(...[...findings].sort((one, other) => place(one) - place(other)).map(findingCard));
}
