// The data blocks of the page. A block is parsed when its step is chosen, and the last few are kept.
const index = JSON.parse($("index").textContent);
const KEPT = 3;
const steps = new Map();

function block(kind, run, step) {
  const element = $(`${kind}-${run}-${step}`);
  return element ? JSON.parse(element.textContent) : null;
}

// Changes of log-prob up to this size count as no movement, here as in the finding about flips.
const deadBand = (about) => about.findings?.find(({ name }) => name === "flips")?.numbers.dead_band ?? 1e-4;

const verdictOf = (score) => (score === null ? "ungraded" : score >= 1 ? "right" : "wrong");

function stepData(run, step) {
  const key = `${run}/${step}`;
  if (!steps.has(key)) {
    if (steps.size >= KEPT) steps.delete(steps.keys().next().value);
    steps.set(key, { about: block("about", run, step) ?? {}, tokens: arranged(block("tokens", run, step)), scales: new Map() });
  }
  return steps.get(key);
}

function arranged(packed) {
  if (packed === null) return null;
  const { texts, classes, tokens, evidence } = packed;
  const about = packed.responses;
  const responses = [];
  let start = 0;
  for (let at = 0; at < about.row.length; at += 1) {
    responses.push({
      row: about.row[at],
      start,
      count: about.count[at],
      length: about.length[at],
      score: about.score[at],
      verdict: verdictOf(about.score[at]),
      reward: about.reward[at],
      advantage: about.advantage[at],
      optimizerStep: about.optimizer_step[at],
      covered: packed.covers.map(() => -1),
    });
    start += about.count[at];
  }
  packed.covers.forEach((cover, number) => {
    let seen = 0;
    for (const place of cover) {
      responses[place].covered[number] = seen;
      seen += responses[place].count;
    }
  });
  const prompts = packed.prompts.map((prompt) => {
    const siblings = responses.slice(prompt.first, prompt.first + prompt.count);
    const mine = { group: prompt.group, text: prompt.prompt, responses: siblings };
    for (const sibling of siblings) sibling.prompt = mine;
    return mine;
  });
  const value = (name, response, at) => {
    if (name in evidence) {
      const [cover, values] = evidence[name];
      return response.covered[cover] < 0 ? null : values[response.covered[cover] + at];
    }
    const column = tokens[name];
    return Array.isArray(column) ? column[response.start + at] : column ?? null;
  };
  const has = (name) => name in evidence || Array.isArray(tokens[name]) || known(tokens[name]);
  return {
    prompts,
    responses,
    value,
    has,
    id: (response, at) => tokens.text[response.start + at],
    text: (response, at) => texts[tokens.text[response.start + at]],
    className: (response, at) => classes[tokens.class[response.start + at]],
  };
}
