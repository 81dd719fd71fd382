// Prefixes that siblings share, token by token.
function sharedLengths(data, prompt) {
  // Response -> sibling -> length of their common prefix.
  const lengths = new Map(prompt.responses.map((response) => [response, new Map()]));
  prompt.responses.forEach((one, place) => {
    for (const other of prompt.responses.slice(place + 1)) {
      const most = Math.min(one.count, other.count);
      let common = 0;
      while (common < most && data.id(one, common) === data.id(other, common)) common += 1;
      lengths.get(one).set(other, common);
      lengths.get(other).set(one, common);
    }
  });
  return lengths;
}

function tree(data, prompt) {
  if (!prompt.shared) prompt.shared = sharedLengths(data, prompt);
  return prompt.shared;
}

// `own`: position of the first token that no sibling shares. `forks`: earlier positions at which a sibling diverges.
function branches(data, response) {
  const lengths = [...tree(data, response.prompt).get(response).values()].filter((length) => length > 0);
  const last = Math.max(0, ...lengths);
  return { own: last, forks: new Set(lengths.filter((length) => length < last)) };
}

function sharers(data, response, at) {
  const lengths = tree(data, response.prompt).get(response);
  return [response, ...[...lengths].filter(([, length]) => length > at).map(([sibling]) => sibling)];
}
