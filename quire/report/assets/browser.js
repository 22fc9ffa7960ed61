// The results browser: only the rows in view are in the page, however many there are.
"use strict";
(() => {
  const { data, element, Rows, detail } = quire;
  const HEIGHT = 52, HEAD = 34, SPARE = 6;
  const two = data.runs.length > 1;
  const number = new Intl.NumberFormat("en");
  const place = document.getElementById("browser");
  const rows = new Rows();
  const state = { words: "", tests: new Map(), order: null, found: [], chosen: -1 };
  let list, body, count, panel;

  // ---- what a row looks like in the list ----
  function answerCell(side) {
    if (side === null) return element("div", { class: "cell", role: "gridcell" }, "—");
    if (side.error !== null) return element("div", { class: "cell error", role: "gridcell" }, side.errorType || "failed");
    if (side.choices) {
      const best = side.choices.reduce((top, choice) => choice[1] > top[1] ? choice : top);
      return element("div", { class: "cell", role: "gridcell" }, best[0].trim());
    }
    const more = side.outputs.length > 1 ? `${side.outputs.length}× ` : "";
    return element("div", { class: "cell", role: "gridcell" }, more + (side.outputs[0] || "").trim().slice(0, 300));
  }

  function figure(row) {
    const metric = state.metric;
    if (two && metric) {
      const delta = Rows.delta(row, metric);
      if (delta === null) return "";
      return element("span", { class: delta > 0 ? "delta-good" : delta < 0 ? "delta-bad" : null }, (delta > 0 ? "+" : "") + String(Math.round(delta * 1000) / 1000));
    }
    if (metric) {
      const value = Rows.score(row.sides[0], metric);
      if (value === null) return "";
      return value === 1 ? element("span", { class: "delta-good" }, "1") : value === 0 ? element("span", { class: "delta-bad" }, "0") : String(Math.round(value * 1000) / 1000);
    }
    const side = row.sides[0];
    return side && side.error === null ? number.format(side.outputTokens) : "";
  }

  function rowNode(at, position) {
    const row = rows.rows[at];
    const node = element("div", {
      class: two ? "row wide" : "row", role: "row", id: `row-${position}`, "aria-rowindex": position + 2, "aria-selected": position === state.chosen ? "true" : "false",
    }, element("div", { class: "cell id", role: "gridcell" }, String(row.number)),
    element("div", { class: "cell prompt", role: "gridcell" }, rows.shownPrompt(row).slice(0, 300)),
    row.sides.map(answerCell), element("div", { class: "cell num", role: "gridcell" }, figure(row)));
    node.style.top = `${position * HEIGHT}px`;
    node.addEventListener("click", () => choose(position));
    return node;
  }

  function paint() {
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - SPARE);
    const last = Math.min(state.found.length, Math.ceil((list.scrollTop + list.clientHeight) / HEIGHT) + SPARE);
    const nodes = [];
    for (let position = first; position < last; position++) nodes.push(rowNode(state.found[position], position));
    body.replaceChildren(...nodes);
    if (state.chosen >= first && state.chosen < last) list.setAttribute("aria-activedescendant", `row-${state.chosen}`);
    else list.removeAttribute("aria-activedescendant");
  }

  function choose(position, scroll) {
    if (!state.found.length) { panel.replaceChildren(element("p", { class: "empty" }, "No row to show.")); state.chosen = -1; return; }
    state.chosen = Math.max(0, Math.min(state.found.length - 1, position));
    if (scroll) {
      const top = state.chosen * HEIGHT, room = list.clientHeight - HEAD;
      if (top < list.scrollTop) list.scrollTop = top;
      else if (top + HEIGHT > list.scrollTop + room) list.scrollTop = top + HEIGHT - room;
    }
    panel.replaceChildren(detail(rows.rows[state.found[state.chosen]], state.words));
    panel.scrollTop = 0;
    paint();
  }

  function refresh() {
    state.found = rows.select({ words: state.words, tests: [...state.tests.values()], order: state.order });
    body.style.height = `${state.found.length * HEIGHT}px`;
    list.setAttribute("aria-rowcount", state.found.length + 1);
    list.scrollTop = 0;
    const all = rows.rows.length, some = state.found.length;
    count.textContent = some === all ? `${number.format(all)} rows` : `${number.format(some)} of ${number.format(all)} rows`;
    choose(0);
    paint();
  }

  // ---- what can be asked for ----
  function menu(label, options, act) {
    const select = element("select", { "aria-label": label }, options.map(([value, text]) => element("option", { value }, text)));
    select.addEventListener("change", () => { act(select.value); refresh(); });
    return select;
  }

  function testMenu(label, entries) {
    const options = [["", label], ...entries.map(([text], at) => [String(at), text])];
    return menu(label, options, (value) => {
      if (value === "") state.tests.delete(label); else state.tests.set(label, entries[Number(value)][1]);
    });
  }

  const any = (test) => (row) => row.sides.some((side) => side !== null && test(side));

  function finishMenu() {
    const reasons = new Set();
    for (const { sides } of rows.rows) for (const side of sides) if (side) for (const reason of side.finish) reasons.add(reason);
    const entries = [["Finished well", any((side) => side.error === null)], ["Failed", any((side) => side.error !== null)]];
    for (const reason of [...reasons].sort()) entries.push([`Ended by ${reason}`, any((side) => side.finish.includes(reason))]);
    return testMenu("Every ending", entries);
  }

  function scoreMenu(metric) {
    if (two) {
      return testMenu(`Every ${metric}`, [
        ["Changed", (row) => Rows.delta(row, metric) !== null && Rows.delta(row, metric) !== 0],
        ["Better", (row) => Rows.delta(row, metric) > 0], ["Worse", (row) => Rows.delta(row, metric) < 0],
      ]);
    }
    const value = (row) => Rows.score(row.sides[0], metric);
    return testMenu(`Every ${metric}`, [
      ["Right (1)", (row) => value(row) === 1], ["Wrong (0)", (row) => value(row) === 0],
      ["In between", (row) => value(row) !== null && value(row) !== 0 && value(row) !== 1], ["Not scored", (row) => value(row) === null],
    ]);
  }

  function sameMenu() {
    const same = (row) => row.sides[0] && row.sides[1] && row.sides[0].outputs.join("\0") === row.sides[1].outputs.join("\0") && row.sides[0].error === row.sides[1].error;
    return testMenu("Every answer", [["Different answers", (row) => !same(row)], ["Same answers", same]]);
  }

  function facetMenu([name, values]) {
    return testMenu(`Every ${name}`, values.map((value) => [value, (row) => row.columns.some(([column, found]) => column === name && found === value)]));
  }

  function orderMenu(metrics) {
    const side = (row) => row.sides[0] || row.sides[1];
    const orders = { "": null, long: (a, b) => side(b).outputTokens - side(a).outputTokens, short: (a, b) => side(a).outputTokens - side(b).outputTokens,
      prompt: (a, b) => side(b).promptTokens - side(a).promptTokens };
    const options = [["", "In order of rows"], ["long", "Longest answer first"], ["short", "Shortest answer first"], ["prompt", "Longest prompt first"]];
    for (const metric of metrics) {
      const value = (row) => two ? Rows.delta(row, metric) ?? 0 : Rows.score(row.sides[0], metric) ?? -Infinity;
      orders[`score ${metric}`] = (a, b) => value(a) - value(b);
      options.push([`score ${metric}`, two ? `Largest loss of ${metric} first` : `Lowest ${metric} first`]);
    }
    return menu("Order", options, (value) => { state.order = orders[value]; });
  }

  function controls(metrics) {
    const search = element("input", { type: "search", placeholder: "Search prompts and answers", "aria-label": "Search prompts and answers" });
    let waiting = null;
    search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { state.words = search.value; refresh(); }, 120); });
    count = element("span", { class: "count", role: "status" });
    return element("div", { class: "controls" }, search, finishMenu(), two ? sameMenu() : null, metrics.map(scoreMenu),
      rows.facets().slice(0, 4).map(facetMenu), orderMenu(metrics), count);
  }

  const KEYS = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity };
  function listOf(metrics) {
    const last = metrics.length ? (two ? "Change" : "Score") : "Tokens";
    const answers = two ? data.runs.map((run) => run.name) : ["Answer"];
    const head = element("div", { class: two ? "row wide head" : "row head", role: "row", "aria-rowindex": 1 },
      ["Row", "Prompt", ...answers, last].map((text, at) => element("div", { class: at === 1 ? "cell prompt" : at === answers.length + 2 ? "cell num" : "cell", role: "columnheader", title: at === answers.length + 2 && metrics.length ? metrics[0] : text }, text)));
    body = element("div", { class: "list-body", role: "rowgroup" });
    const grid = element("div", { class: "list", role: "grid", "aria-label": "Results", tabindex: "0" }, element("div", { class: "list-head", role: "rowgroup" }, head), body);
    grid.addEventListener("scroll", () => requestAnimationFrame(paint));
    grid.addEventListener("keydown", (event) => {
      if (KEYS[event.key] === undefined) return;
      event.preventDefault();
      choose(state.chosen + KEYS[event.key], true);
    });
    return grid;
  }

  async function start() {
    const status = place.querySelector(".loading");
    await rows.load(data.rows.chunks, (loaded) => { status.textContent = `Reading rows: ${number.format(loaded)} of ${number.format(data.rows.num)}`; });
    const metrics = rows.metrics();
    state.metric = metrics[0] || null;
    panel = element("div", { class: "detail", role: "region", "aria-label": "The chosen row", tabindex: "0" });
    const bar = controls(metrics);
    list = listOf(metrics);
    place.replaceChildren(bar, element("div", { class: "browser" }, list, panel));
    refresh();
    new ResizeObserver(paint).observe(list);
    place.dataset.ready = "yes";
  }
  if (place) document.addEventListener("DOMContentLoaded", start);
})();
