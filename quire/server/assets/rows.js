// Files as rows: which format, which columns, and the lines of a batch made from a table.
"use strict";
quire.table = (() => {
  const MOST_BYTES = 256 * 1024 * 1024; // that a table may have: it is read into this page
  const HEAD = 1024 * 1024; // read to see what a file is
  const CHAT = "/v1/chat/completions";
  const COLUMN = /\{\{\s*([^{}]*?)\s*\}\}/g;

  function firstLine(text) {
    for (const line of text.replace(/^\ufeff/, "").split("\n")) if (line.trim()) return line;
    return "";
  }

  // What a file is: { kind: "batch", url } or { kind: "table", columns, rows }.
  async function read(file) {
    const head = await file.slice(0, HEAD).text();
    const first = firstLine(head);
    if (!first) throw new Error("The file is empty.");
    const isDelimited = /\.(csv|tsv)$/i.test(file.name);
    let object = null;
    if (!isDelimited) {
      try {
        object = JSON.parse(first);
      } catch {
        throw new Error("The first line is no JSON. A table with commas needs a name that ends in .csv.");
      }
      if (object === null || typeof object !== "object" || Array.isArray(object)) throw new Error("The first line is no JSON object.");
      if ("custom_id" in object && "body" in object) return { kind: "batch", url: String(object.url || CHAT) };
    }
    if (file.size > MOST_BYTES) throw new Error("A table of more than 256 MiB is too large for a browser; quire run takes any size.");
    const text = (await file.text()).replace(/^\ufeff/, "");
    const rows = isDelimited ? delimited(text, /\.tsv$/i.test(file.name) ? "\t" : ",") : lines(text);
    if (!rows.length) throw new Error("The file has no rows.");
    return { kind: "table", columns: Object.keys(rows[0]), rows };
  }

  function lines(text) {
    const rows = [];
    text.split("\n").forEach((line, at) => {
      if (!line.trim()) return;
      let row = null;
      try {
        row = JSON.parse(line);
      } catch { /* said below */ }
      if (row === null || typeof row !== "object" || Array.isArray(row)) throw new Error(`Line ${at + 1} is no JSON object.`);
      rows.push(row);
    });
    return rows;
  }

  // Cells as RFC 4180 writes them: quoted cells may hold separators, quotes (doubled), line ends.
  function cells(text, separator) {
    const records = [];
    let record = [], cell = "", at = 0, isQuoted = false, wasQuoted = false;
    const endCell = () => { record.push(cell); cell = ""; wasQuoted = false; };
    const endRecord = () => {
      const isBlank = record.length === 0 && cell === "" && !wasQuoted;
      if (!isBlank) { endCell(); records.push(record); }
      record = [];
    };
    while (at < text.length) {
      const letter = text[at];
      if (isQuoted) {
        if (letter !== '"') { cell += letter; }
        else if (text[at + 1] === '"') { cell += '"'; at += 1; }
        else { isQuoted = false; }
      } else if (letter === '"' && cell === "" && !wasQuoted) { isQuoted = wasQuoted = true; }
      else if (letter === separator) { endCell(); }
      else if (letter === "\n") { endRecord(); }
      else if (letter !== "\r" || text[at + 1] !== "\n") { cell += letter; }
      at += 1;
    }
    if (isQuoted) throw new Error(`Record ${records.length + 1} has a quote that is never closed.`);
    endRecord();
    return records;
  }

  function delimited(text, separator) {
    const [names, ...records] = cells(text, separator);
    if (new Set(names).size < names.length) throw new Error("Two columns have the same name.");
    return records.map((record, at) => {
      if (record.length !== names.length) throw new Error(`Row ${at + 1} has ${record.length} cells, and the head has ${names.length}.`);
      return Object.fromEntries(names.map((name, column) => [name, record[column]]));
    });
  }

  const shown = (value) => typeof value === "string" ? value : JSON.stringify(value);

  // The template with the row's values; what is put in is never read as a template again.
  function render(template, row) {
    return template.replace(COLUMN, (whole, name) => {
      if (!Object.hasOwn(row, name)) throw new Error(`There is no column ${JSON.stringify(name)}.`);
      return shown(row[name]);
    });
  }

  function messages(asked, row) {
    const user = { role: "user", content: render(asked.prompt, row) };
    return asked.system.trim() ? [{ role: "system", content: render(asked.system, row) }, user] : [user];
  }

  function line(asked, row, number) {
    const body = {
      model: asked.model, messages: messages(asked, row),
      max_completion_tokens: asked.maxTokens, temperature: asked.temperature,
    };
    return JSON.stringify({ custom_id: `row-${number + 1}`, method: "POST", url: CHAT, body }) + "\n";
  }

  const asBatch = (asked, rows) => new Blob(rows.map((row, number) => line(asked, row, number)), { type: "application/jsonl" });
  return { read, render, asBatch, CHAT };
})();
