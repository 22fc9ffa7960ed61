// One row, all of it: what was asked, what came back, how it was judged.
"use strict";
quire.detail = (() => {
  const { element, data, wordDiff } = quire;
  const LONG = 2400; // characters shown of a long text until it is opened
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });

  function marked(text, words) {
    const wanted = words.toLowerCase().trim();
    if (!wanted) return [text];
    const parts = [], low = text.toLowerCase();
    let from = 0;
    for (let at = low.indexOf(wanted); at !== -1; at = low.indexOf(wanted, from)) {
      parts.push(text.slice(from, at), element("mark", {}, text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
    return [...parts, text.slice(from)];
  }

  // What a prompt has in common with its neighbours is folded, so that the row's own question
  // stands beside its answer.
  function prompt(row, words) {
    const before = row.prompt.slice(0, row.own);
    if (!row.own || (words && before.toLowerCase().includes(words.toLowerCase().trim()))) return shown(row.prompt, words);
    const block = element("div", { class: "text" });
    const all = element("button", { class: "button fold", type: "button", on: { click: () => block.replaceChildren(row.prompt) } }, `Show the ${number.format(row.own)} characters before this`);
    block.append(all, "\n", ...marked(row.prompt.slice(row.own), words));
    return block;
  }

  function shown(text, words, kind) {
    const block = element("div", { class: `text ${kind || ""}` });
    if (text === "") {
      block.append(element("span", { class: "blank" }, "empty"));
    } else if (text.length <= LONG || words) {
      block.append(...marked(text, words));
    } else {
      // The end of a long prompt is what differs from its neighbours.
      const more = element("button", { class: "button", type: "button", on: { click: () => block.replaceChildren(text) } }, `Show all ${number.format(text.length)} characters`);
      block.append(more, "\n\n… " + text.slice(-LONG));
    }
    return block;
  }

  const section = (title, ...content) => element("section", {}, element("h4", {}, title), ...content);
  const name = (at) => data.runs.length > 1 ? data.runs[at].name : "";
  const pill = (text, kind) => element("span", { class: `pill ${kind}` }, text);

  function tokensOf(side) {
    const written = number.format(side.outputTokens);
    return side.choices ? `${written} tokens scored` : `${number.format(side.promptTokens)} in, ${written} out`;
  }

  function finishPill(side, at) {
    if (side.error !== null) return pill(side.errorType || "failed", "bad");
    const reason = side.finish[at] || "scored";
    return pill(reason, reason === "length" ? "warn" : "plain");
  }

  function choices(side, truth) {
    const best = side.choices.reduce((top, [, logprob], at) => logprob > side.choices[top][1] ? at : top, 0);
    return element("ul", { class: "choice-list" }, side.choices.map(([text, logprob], at) => {
      const right = truth !== null && (String(at) === truth || text.trim() === truth.trim());
      return element("li", { class: at === best ? "chosen" : null }, element("span", {}, text.trim(), right ? " ✓" : ""), element("span", { class: "mono" }, number.format(logprob)));
    }));
  }

  // One line a metric; with two runs, what each of them got beside the other.
  function scores(sides) {
    const metrics = [...new Set(sides.flatMap((side) => side ? Object.keys(side.scores) : []))];
    const rows = metrics.map((metric) => element("tr", {}, element("td", {}, metric), sides.flatMap((side) => {
      const found = side && side.scores[metric];
      if (!found) return [element("td", { class: "num" }, "—"), element("td")];
      const [value, read, reason] = found;
      return [element("td", { class: "num" }, number.format(value)), element("td", {}, read === null ? "" : element("code", {}, read), reason ? ` ${reason}` : "")];
    })));
    if (!rows.length) return null;
    const titles = ["Metric", ...sides.flatMap((side, at) => [sides.length > 1 ? name(at) : "Score", "Read"])];
    const head = element("thead", {}, element("tr", {}, titles.map((text, at) => element("th", { scope: "col", class: at % 2 ? "num" : null }, text))));
    return section("Scores", element("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Scores of the row" }, element("table", { class: "plain" }, head, element("tbody", {}, rows))));
  }

  function answers(side, at, words, truth) {
    if (side === null) return section(`Answer ${name(at)}`, element("div", { class: "text" }, element("span", { class: "blank" }, "not in this run")));
    const parts = [];
    if (side.error !== null) parts.push(section("Error", shown(`${side.errorType}: ${side.error}`, words, "error")));
    else if (side.choices) parts.push(section(`Choices ${name(at)}`.trim(), choices(side, truth)));
    else side.outputs.forEach((output, sample) => {
      const title = side.outputs.length > 1 ? `Answer ${sample + 1} ${name(at)}` : `Answer ${name(at)}`;
      const made = section(title.trim(), shown(output, words, "answer"));
      made.firstChild.append(finishPill(side, sample));
      parts.push(made);
    });
    return parts;
  }

  function compared(row) {
    const [before, after] = row.sides;
    if (!before || !after || before.error !== null || after.error !== null || before.choices || after.choices) return null;
    if (before.outputs.length > 1 || after.outputs.length > 1) return null;
    if (before.outputs[0] === after.outputs[0]) return section("Difference", element("p", { class: "note" }, "The two answers are the same."));
    const parts = wordDiff(before.outputs[0], after.outputs[0]).map(([kind, text]) => kind === "same" ? text : element(kind === "new" ? "ins" : "del", {}, text));
    return section(`Difference, ${name(0)} → ${name(1)}`, element("div", { class: "text" }, ...parts));
  }

  function pictures(row) {
    if (!row.pictures.length) return null;
    const shown = row.pictures.map((picture, at) => element("img", { src: `data:image/jpeg;base64,${picture}`, alt: `Image ${at + 1} of the row, made small` }));
    return section("Images", element("div", { class: "pictures" }, shown));
  }

  function columns(row) {
    if (!row.columns.length) return null;
    const list = element("dl", { class: "facts" }, row.columns.flatMap(([column, value]) => [element("dt", {}, column), element("dd", {}, value === null ? "null" : value)]));
    return element("details", {}, element("summary", {}, `All ${row.columns.length} columns`), list);
  }

  return (row, words) => {
    const tokens = row.sides.find((side) => side !== null);
    const head = element("div", { class: "detail-head" }, element("h3", {}, `Row ${row.number}`),
      row.key === String(row.number) ? null : pill(row.key, "plain"),
      tokens.error === null ? pill(tokensOf(tokens), "plain") : null);
    const sides = row.sides.map((side, at) => element("div", {}, answers(side, at, words, row.truth)));
    const node = element("div", {}, head, section("Prompt", prompt(row, words)), pictures(row),
      row.sides.length > 1 ? compared(row) : null,
      row.sides.length > 1 ? element("div", { class: "sides" }, sides) : sides, scores(row.sides),
      row.truth === null ? null : section("Expected", shown(row.truth, words)), columns(row));
    return node;
  };
})();
