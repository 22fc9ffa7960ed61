// The rows of the page: unpacked chunk by chunk, found by text, filtered, sorted.
"use strict";
quire.Rows = (() => {
const COMMON = 60; // characters that are worth folding
const LONG = 600;

return class {
  constructor() {
    this.rows = [];
    this.texts = []; // what is searched, in lower case; made when first needed
  }

  async load(chunks, onProgress) {
    for (const chunk of chunks) {
      const table = await quire.unpack(chunk);
      for (let at = 0; at < table.key.length; at++) this.rows.push(this.#row(table, at));
      onProgress(this.rows.length);
    }
    this.rows.forEach((row, at) => { row.own = this.#ownStart(row.prompt, at); });
  }

  #row(table, at) {
    const columns = Object.entries(table.columns).map(([name, values]) => [name, values[at]]);
    const sides = table.sides.map((side) => side.outputs[at] === null ? null : {
      outputs: side.outputs[at], finish: side.finish[at], error: side.error[at], errorType: side.error_type[at],
      promptTokens: side.prompt_tokens[at], outputTokens: side.output_tokens[at], choices: side.choices[at],
      scores: Object.fromEntries(Object.entries(side.scores).map(([metric, values]) => [metric, values[at]])),
    });
    return { key: table.key[at], number: table.row[at], prompt: table.prompt[at], truth: table.truth[at], pictures: table.pictures ? table.pictures[at] : [], columns, sides };
  }

  // Few-shot prompts begin alike: where a row's own part begins, after what it has in common with
  // a neighbour; in a long prompt with no such beginning, the last paragraph.
  #ownStart(prompt, at) {
    let longest = 0;
    for (const other of [this.rows[at - 1], this.rows[at + 1]]) {
      if (!other || other.prompt === prompt) continue;
      let same = 0;
      while (same < prompt.length && prompt[same] === other.prompt[same]) same++;
      longest = Math.max(longest, same);
    }
    const start = longest ? prompt.lastIndexOf("\n", longest - 1) + 1 : 0;
    if (start >= COMMON) return start;
    const last = prompt.trimEnd().lastIndexOf("\n\n");
    return prompt.length > LONG && last !== -1 ? last + 2 : 0;
  }

  shownPrompt(row) {
    return row.own ? "… " + row.prompt.slice(row.own) : row.prompt;
  }

  text(at) {
    if (this.texts[at] === undefined) {
      const row = this.rows[at];
      const parts = [row.key, row.prompt, row.truth];
      for (const side of row.sides) if (side) parts.push(...side.outputs, side.error);
      this.texts[at] = parts.filter((part) => part !== null).join("\n").toLowerCase();
    }
    return this.texts[at];
  }

  // The columns worth a menu of their values: few different ones, short, and repeated.
  facets() {
    const found = new Map();
    for (const { columns } of this.rows) {
      for (const [name, value] of columns) {
        if (!found.has(name)) found.set(name, new Set());
        const seen = found.get(name);
        if (seen !== null) {
          if (value === null || value.length > 60) found.set(name, null); else seen.add(value);
          if (seen.size > 60) found.set(name, null);
        }
      }
    }
    const many = (values) => values !== null && values.size > 1 && values.size <= Math.max(2, this.rows.length / 2);
    return [...found].filter(([, values]) => many(values)).map(([name, values]) => [name, [...values].sort()]);
  }

  metrics() {
    const names = new Set();
    for (const { sides } of this.rows) for (const side of sides) if (side) for (const name of Object.keys(side.scores)) names.add(name);
    return [...names];
  }

  static score(side, metric) {
    const found = side && side.scores[metric];
    return found ? found[0] : null;
  }

  static delta(row, metric) {
    const before = this.score(row.sides[0], metric), after = this.score(row.sides[1], metric);
    return before === null || after === null ? null : after - before;
  }

  // The numbers of the rows that pass every test, in the order asked for.
  select({ words, tests, order }) {
    const wanted = words.toLowerCase().trim();
    const found = [];
    for (let at = 0; at < this.rows.length; at++) {
      if (tests.every((test) => test(this.rows[at])) && (!wanted || this.text(at).includes(wanted))) found.push(at);
    }
    if (order) found.sort((a, b) => order(this.rows[a], this.rows[b]) || a - b);
    return found;
  }
};
})();
