// The selected run and step. Everything below the curves shows them.
const at = { run: 0, step: null };

function showStep() {
  const run = index.runs[at.run];
  $("step").value = String(at.step);
  const place = run.steps.indexOf(at.step);
  $("step-back").disabled = place <= 0;
  $("step-on").disabled = place < 0 || place === run.steps.length - 1;
  const chosen = at.step === null ? { about: {}, tokens: null, scales: new Map() } : stepData(at.run, at.step);
  const fewer = run.some_prompts[at.step];
  const notes = [
    fewer ? make("span", {}, `${fewer[0]} of ${fewer[1]} prompts fit on the page`) : null,
    run.left_out.length
      ? make("details", {}, make("summary", {}, `${plural(run.left_out.length, "step")} left out to limit the size of the page`), run.left_out.join(", "))
      : null,
  ];
  $("left-out").replaceChildren(...notes.filter(known));
  chooseStepOfView(chosen);
  showFindings(chosen.about);
  showPlan(chosen.about.plan);
}

function showRun(number) {
  const run = index.runs[number];
  at.run = number;
  const withTokens = new Set(run.with_tokens);
  $("step").replaceChildren(...run.steps.map((step) => make("option", { value: step }, withTokens.has(step) ? String(step) : `${step}, no tokens`)));
  if (!run.steps.includes(at.step)) at.step = run.with_tokens.at(-1) ?? run.steps.at(-1) ?? null;
  showStep();
}

function moveStep(by) {
  const { steps: known } = index.runs[at.run];
  at.step = known[Math.max(0, Math.min(known.length - 1, known.indexOf(at.step) + by))];
  showStep();
}

function beginTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  $("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
}

beginTheme();
beginView();
$("run").addEventListener("change", (event) => showRun(Number(event.target.value)));
$("step").addEventListener("change", (event) => {
  at.step = Number(event.target.value);
  showStep();
});
$("step-back").addEventListener("click", () => moveStep(-1));
$("step-on").addEventListener("click", () => moveStep(1));
addEventListener("resize", hintAtScrolling);
showRun(0);
performance.mark("shown");
