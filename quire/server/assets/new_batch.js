// A new batch from a file: looked at here, shown as it will be asked, then sent.
"use strict";
(() => {
  const { element, client, live, table, say } = quire;
  const number = new Intl.NumberFormat("en");
  const SHOWN = 5;
  const by = (id) => document.getElementById(id);
  let file = null, found = null;

  function reset() {
    found = null;
    by("table").classList.add("hidden");
    by("start").disabled = true;
    say("new-message", "");
  }

  async function choose(chosen) {
    reset();
    file = chosen;
    if (!file) return;
    say("detected", `Reading ${file.name}.`);
    try {
      const read = await table.read(file);
      if (file !== chosen) return; // another one was chosen meanwhile
      found = read;
    } catch (error) {
      if (file === chosen) say("detected", `${file.name}: ${error.message}`, true);
      return;
    }
    if (found.kind === "batch") {
      say("detected", `${file.name}: a batch file for ${found.url}, ${number.format(file.size)} bytes. It goes out as it is.`);
      by("start").disabled = false;
      return;
    }
    say("detected", `${file.name}: a table with ${number.format(found.rows.length)} rows.`);
    by("table").classList.remove("hidden");
    by("columns").replaceChildren(...found.columns.slice(0, 200).map(inserting));
    by("prompt").value = found.columns.length ? `{{ ${fullest()} }}` : "";
    preview();
  }

  // The column with most text: a table often begins with ids, and nobody asks a model about those.
  function fullest() {
    const rows = found.rows.slice(0, SHOWN);
    const length = (name) => rows.reduce((sum, row) => sum + String(row[name] ?? "").length, 0);
    return found.columns.reduce((most, name) => (length(name) > length(most) ? name : most));
  }

  function inserting(name) {
    const button = element("button", { class: "button", type: "button" }, name);
    button.addEventListener("click", () => {
      const prompt = by("prompt");
      prompt.setRangeText(`{{ ${name} }}`, prompt.selectionStart, prompt.selectionEnd, "end");
      prompt.focus();
      preview();
    });
    return button;
  }

  function preview() {
    if (!found || found.kind !== "table") return;
    const system = by("system").value, prompt = by("prompt").value;
    try {
      if (!prompt.trim()) throw new Error("The prompt is empty.");
      const texts = found.rows.slice(0, SHOWN).map((row) => {
        const before = system.trim() ? `${table.render(system, row)}\n\n` : "";
        return before + table.render(prompt, row);
      });
      by("preview").replaceChildren(...texts.map((text, at) =>
        element("li", {}, element("div", { class: "text", tabindex: "0", role: "group", "aria-label": `Row ${at + 1}` }, text.slice(0, 4000)))));
      by("start").disabled = false;
      say("new-message", "");
    } catch (error) {
      by("preview").replaceChildren();
      by("start").disabled = true;
      say("new-message", error.message, true);
    }
  }

  function content() {
    if (found.kind === "batch") return file;
    return table.asBatch({
      model: live.model(), prompt: by("prompt").value, system: by("system").value,
      maxTokens: Number(by("max-tokens").value), temperature: Number(by("temperature").value),
    }, found.rows);
  }

  async function start(event) {
    event.preventDefault();
    if (!found) return;
    by("start").disabled = true;
    by("sent").classList.remove("hidden");
    try {
      say("new-message", "Sending the file.");
      const name = found.kind === "batch" ? file.name : `${file.name.replace(/\.[^.]*$/, "")}.jsonl`;
      const sent = await client.upload(content(), name, (share) => { by("sent").value = share; });
      const endpoint = found.kind === "batch" ? found.url : table.CHAT;
      await client.request("POST", "/v1/batches", { input_file_id: sent.id, endpoint, completion_window: by("window").value });
      by("new-form").reset();
      reset();
      file = null;
      say("detected", "");
      say("new-message", "The batch is on its way; it is the first in the list below.");
      await quire.showNow();
    } catch (error) {
      say("new-message", error.message, true);
      by("start").disabled = false;
    }
    by("sent").classList.add("hidden");
    by("sent").value = 0;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const drop = by("drop");
    by("file").addEventListener("change", () => choose(by("file").files[0] || null));
    for (const id of ["prompt", "system"]) by(id).addEventListener("input", preview);
    by("new-form").addEventListener("submit", start);
    for (const name of ["dragenter", "dragover"]) {
      drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
    }
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      by("file").value = "";
      choose(event.dataTransfer.files[0] || null);
    });
  });
})();
