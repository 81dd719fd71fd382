// Close to 1, the distance to 1 is more informative than "1.000".
function chance(logp) {
  const missing = -Math.expm1(Math.min(0, logp));
  return missing === 0 ? "1" : missing < 0.005 ? `1 \u2212 ${minus(missing.toExponential(1))}` : figure(1 - missing);
}

// All numbers of one token.
function detailRows(data, response, at) {
  const get = (name) => data.value(name, response, at);
  const logp = get("logp");
  const change = get("change_step");
  const [before, after] = [get("value_before"), get("value_after")];
  const cancelled = (up, down) => {
    const mass = Math.abs(up) + Math.abs(down);
    return known(up) && known(down) && mass > 0 ? percent(1 - Math.abs(up + down) / mass) : null;
  };
  const row = (label, value, text, bar) => (known(text) && known(value) ? { label, value, text, bar } : null);
  const plain = (label, name, bar) => row(label, get(name), signed(get(name)), bar);
  return [
    ["Training signal", [
      plain("credit", "credit", "credit"),
      row("coefficient", get("coefficient"), figure(get("coefficient"))),
      row("advantage", response.advantage, signed(response.advantage)),
      row("reward", response.reward, figure(response.reward)),
      row("score", response.score, figure(response.score)),
    ]],
    ["Before the update", [
      row("probability", logp, chance(logp) + (known(change) ? ` \u2192 ${chance(logp + change)}` : "")),
      row("log-prob", logp, figure(logp)),
      row("log-prob, sampler", get("behavior_logp"), figure(get("behavior_logp"))),
      row("entropy", get("entropy"), figure(get("entropy")) + (known(get("entropy_after")) ? ` \u2192 ${figure(get("entropy_after"))}` : "")),
    ]],
    ["Change of log-prob", [
      plain("measured, first step", "change_first", "change"),
      plain("predicted, first step", "predicted_first", "change"),
      plain("\u2003by positive credit", "predicted_first_positive", "change"),
      plain("\u2003by negative credit", "predicted_first_negative", "change"),
      plain("measured, all steps", "change_step", "change"),
      plain("predicted, all steps", "predicted_step", "change"),
      row("KL at this token", get("kl"), figure(get("kl"))),
    ]],
    ["Raw gradient, by sign of credit", [
      plain("positive, batch", "raw_positive", "raw"),
      plain("negative, batch", "raw_negative", "raw"),
      row("cancels", get("raw_positive"), cancelled(get("raw_positive"), get("raw_negative"))),
      plain("positive, optimizer step", "raw_mini_positive", "mini"),
      plain("negative, optimizer step", "raw_mini_negative", "mini"),
      row("cancels", get("raw_mini_positive"), cancelled(get("raw_mini_positive"), get("raw_mini_negative"))),
    ]],
    ["Moved by", [
      plain("this token", "coupling_own", "coupling"),
      plain("same token elsewhere", "coupling_same", "coupling"),
      plain("other tokens", "coupling_other", "coupling"),
    ]],
    ["Success probability", [
      row("before the token", before, percent(before)),
      row("after the token", after, percent(after)),
      row("gain", known(before) && known(after) ? after - before : null, known(before) && known(after) ? signed(after - before) : null),
    ]],
  ].map(([title, rows]) => [title, rows.filter((entry) => entry !== null)]).filter(([, rows]) => rows.length > 0);
}

// A bar left or right of a centre line; its length is relative to the largest number of the same kind in this panel.
function sideBar(value, largest) {
  const length = largest > 0 ? (48 * Math.abs(value)) / largest : 0;
  return draw("svg", { class: "side-bar", viewBox: "0 0 100 8", "aria-hidden": "true" },
    draw("rect", { class: "fill-grid", x: 49.5, y: 0, width: 1, height: 8 }),
    draw("rect", { class: value > 0 ? "fill-up" : "fill-down", x: value > 0 ? 50 : 50 - length, y: 1.5, width: length, height: 5 }));
}

function sharedSentence(data, response, at) {
  const together = sharers(data, response, at);
  const siblings = response.prompt.responses.length - 1;
  if (together.length === 1) return siblings ? "No sibling shares the tokens up to this one." : null;
  const credits = together.map((sibling) => data.value("credit", sibling, at)).filter(known);
  const net = credits.reduce((sum, credit) => sum + credit, 0);
  const mass = credits.reduce((sum, credit) => sum + Math.abs(credit), 0);
  const sums = mass > 0 ? ` Sum of their credits at this token: ${signed(net)}; sum of absolute values: ${figure(mass)}.` : "";
  return `Shared by ${together.length} of ${siblings + 1} responses up to this token.${sums}`;
}

function tokenLabel(data, response, at) {
  const moved = data.value("change_step", response, at);
  return `${data.text(response, at)}, token ${at + 1} of ${response.length}, response ${response.row}, ${response.verdict}, ` +
    `credit ${signed(data.value("credit", response, at))}${known(moved) ? `, log-prob change ${signed(moved)}` : ""}`;
}

function showDetail(data, response, at) {
  const text = data.text(response, at);
  const right = data.value("right", response, at);
  const groups = detailRows(data, response, at).map(([title, rows]) => {
    const largest = {};
    for (const { bar, value } of rows) if (bar) largest[bar] = Math.max(largest[bar] ?? 0, Math.abs(value));
    return make("section", {}, make("h4", {}, title), make("dl", {}, ...rows.flatMap(({ label, value, text: written, bar }) => [
      make("dt", {}, label), make("dd", {}, bar ? sideBar(value, largest[bar]) : null, make("span", {}, written))])));
  });
  const truth = known(right) ? ` \u00b7 step is ${right ? "right" : "wrong"}` : null;
  const parts = [
    make("header", {},
      make("code", { class: "glyph" }, text.length > 60 ? `${text.slice(0, 60)}\u2026` : text || "\u2205"),
      make("p", {}, make("b", {}, foreign(data.className(response, at)), truth),
        make("span", {}, `token ${at + 1} of ${response.length}, response ${response.row}, ${response.verdict}` +
          (known(response.optimizerStep) ? (response.optimizerStep < 0 ? ", in no optimizer step" : `, optimizer step ${response.optimizerStep + 1}`) : "")))),
    make("p", { class: "shared-told" }, sharedSentence(data, response, at)),
    ...groups,
    response.covered.every((seen) => seen < 0) ? make("p", { class: "quiet" }, "The effect of the update on this response was not measured.") : null,
  ];
  $("detail").replaceChildren(...parts.filter(known));
}

function showKeys() {
  const key = (keys, what) => [make("dt", {}, ...keys.map((name) => make("kbd", {}, name))), make("dd", {}, what)];
  $("detail").replaceChildren(
    make("p", { class: "quiet" }, "Point at a token, or click one and move with the keyboard:"),
    make("dl", { class: "keys" },
      ...key(["\u2190", "\u2192"], "previous, next token"), ...key(["\u2191", "\u2193"], "same position in the response above, below"),
      ...key(["Home", "End"], "first, last token"), ...key(["PgUp", "PgDn"], "previous, next prompts"), ...key(["Esc"], "leave the token")));
}
