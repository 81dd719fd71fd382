// Optimizer steps x prompts: a dot for every response.
function planCell([right, wrong, ungraded], group, step) {
  const total = right + wrong + ungraded;
  if (!total) return make("td", { class: "empty" });
  const counts = [[right, "right"], [wrong, "wrong"], [ungraded, "ungraded"]].filter(([count]) => count).map(([count, word]) => `${count} ${word}`);
  const title = `prompt ${group} in optimizer step ${step + 1}: ${counts.join(", ")}`;
  const kinds = [...Array(right).fill("right"), ...Array(wrong).fill("wrong"), ...Array(ungraded).fill("ungraded")];
  const across = Math.min(4, total);
  const down = Math.ceil(total / across);
  if (total > 16) return make("td", { title }, `${right}/${total}`);
  const dots = kinds.map((kind, at) => draw("circle", { class: `plan-${kind}`, cx: 5 + 10 * (at % across), cy: 5 + 10 * Math.floor(at / across), r: 3.4 }));
  return make("td", { title }, draw("svg", { class: "plan-dots", viewBox: `0 0 ${10 * across} ${10 * down}`, width: 8 * across, height: 8 * down, role: "img", "aria-label": title }, ...dots));
}

function showPlan(plan) {
  if (!plan || !plan.cells.length) {
    $("plan-grid").replaceChildren(make("p", { class: "quiet" }, "No plan was recorded at this step."));
    return;
  }
  const head = make("tr", {}, make("th", { scope: "col" }, "optimizer step"), ...plan.groups.map((group) => make("th", { scope: "col" }, String(group))),
    make("th", { scope: "col", class: "number" }, "responses"), make("th", { scope: "col", class: "number" }, "prompts"), make("th", { scope: "col", class: "number" }, "denominator"));
  const rows = plan.cells.map((cells, step) => make("tr", {}, make("th", { scope: "row" }, String(step + 1)),
    ...cells.map((cell, at) => planCell(cell, plan.groups[at], step)),
    make("td", { class: "number" }, String(cells.flat().reduce((sum, count) => sum + count, 0))),
    make("td", { class: "number" }, String(cells.filter((cell) => cell.some((count) => count)).length)),
    make("td", { class: "number" }, figure(plan.steps[step]?.denominator))));
  const unsplit = plan.groups.filter((_, at) => plan.cells.filter((cells) => cells[at].some((count) => count)).length === 1).length;
  const summary = [...(plan.kind ? ["Batching: ", foreign(plan.kind), ". "] : []), `${unsplit} of ${plural(plan.groups.length, "prompt")} ${unsplit === 1 ? "has" : "have"} all responses in one optimizer step.` +
    (plan.unplaced ? ` ${plural(plan.unplaced, "response")} in no optimizer step.` : "") + (plan.digest ? " Plan digest: " : ""), ...(plan.digest ? [foreign(plan.digest), "."] : [])];
  const table = make("table", { class: "plan-table" }, make("thead", {}, head), make("tbody", {}, ...rows));
  const box = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Plan, optimizer steps by prompts" }, table);
  $("plan-grid").replaceChildren(make("p", {}, ...summary), make("p", { class: "fine hint", hidden: true }, "Wider than the page: scroll the grid sideways \u2192"), box);
  hintAtScrolling();
}

function hintAtScrolling() {
  const box = $("plan-grid").querySelector(".scroll");
  if (box) $("plan-grid").querySelector(".hint").hidden = box.scrollWidth <= box.clientWidth;
}
