// The list of batches: bars that move, what is left, and what can be done with each.
"use strict";
(() => {
  const { element, client, live, say } = quire;
  const number = new Intl.NumberFormat("en");
  const PAGE = 20, LIVE = ["validating", "in_progress", "finalizing", "cancelling"];
  const KINDS = { completed: "good", failed: "bad", expired: "warn", cancelled: "plain", cancelling: "warn" };
  const WORDS = { in_progress: "running", validating: "checking", finalizing: "writing out" };
  const shown = new Map(); // by id: its elements, and how far it was when
  const names = new Map(); // of input files, by id
  let wanted = PAGE, lastLook = 0;

  function duration(seconds) {
    if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
  }

  // By how far it came in the last half minute.
  function left(entry, done, total) {
    const now = performance.now() / 1000;
    entry.past.push([now, done]);
    while (entry.past.length > 2 && now - entry.past[0][0] > 30) entry.past.shift();
    const [then, before] = entry.past[0];
    if (done <= before || now - then < 2) return "";
    return `about ${duration((total - done) * (now - then) / (done - before))} left`;
  }

  const act = (label, run) => {
    const button = element("button", { class: "button", type: "button" }, label);
    button.addEventListener("click", async () => {
      button.disabled = true;
      say("batches-message", "");
      try {
        await run(button);
      } catch (error) {
        say("batches-message", error.message, true);
      }
      button.disabled = false;
    });
    return button;
  };

  function cancelling(id) {
    let isSure = false;
    return act("Cancel", async (button) => {
      if (!isSure) { // a second press within a few seconds means it
        isSure = true;
        button.textContent = "Cancel for good?";
        setTimeout(() => { isSure = false; button.textContent = "Cancel"; }, 4000);
        return;
      }
      await client.request("POST", `/v1/batches/${id}/cancel`);
      await live.look();
    });
  }

  async function openReport(id) {
    const tab = window.open("", "_blank"); // now, or the browser takes it for an advertisement
    try {
      const { url } = await client.request("POST", `/v1/batches/${id}/report`);
      if (tab) tab.location.replace(new URL(url, location.href).href);
      else location.assign(url);
    } catch (error) {
      if (tab) tab.close();
      throw error;
    }
  }

  function made(id) {
    const parts = {
      name: element("h3"), state: element("span", { class: "pill plain" }), bar: element("progress", { max: "1", value: "0" }),
      facts: element("p", { class: "batch-facts" }), errors: element("ul", { class: "batch-errors hidden" }),
      actions: element("div", { class: "actions" }),
    };
    const buttons = {
      cancel: cancelling(id),
      output: act("Download answers", () => client.download(`/v1/files/${parts.output}/link`)),
      errors: act("Download failed lines", () => client.download(`/v1/files/${parts.failed}/link`)),
      report: act("Open report", () => openReport(id)),
    };
    parts.actions.append(...Object.values(buttons));
    const item = element("li", { "data-batch": id },
      element("div", { class: "batch-head" }, parts.name, parts.state, element("span", { class: "batch-id" }, id)),
      parts.bar, parts.facts, parts.errors, parts.actions);
    return { item, parts, buttons, past: [] };
  }

  function listErrors(place, errors) {
    const some = errors.slice(0, 10);
    const lines = some.map((error) => (error.line ? `line ${error.line}: ` : "") + `${error.message} (${error.code})`);
    if (errors.length > some.length) lines.push(`and ${number.format(errors.length - some.length)} more`);
    place.replaceChildren(...lines.map((line) => element("li", {}, line)));
    place.classList.toggle("hidden", !lines.length);
  }

  function update(entry, batch) {
    const { parts, buttons } = entry, counts = batch.request_counts;
    const done = counts.completed + counts.failed, isLive = LIVE.includes(batch.status);
    const name = names.get(batch.input_file_id) || "a batch";
    parts.name.textContent = name;
    parts.state.textContent = WORDS[batch.status] || batch.status;
    parts.state.className = `pill ${KINDS[batch.status] || "plain"}`;
    parts.bar.value = counts.total ? done / counts.total : 0;
    parts.bar.setAttribute("aria-label", `Rows of ${name} that are done`);
    const facts = counts.total ? [`${number.format(done)} of ${number.format(counts.total)} rows`] : [];
    if (batch.status === "in_progress") facts.push(batch.status_details || left(entry, done, counts.total));
    if (batch.usage) facts.push(`${number.format(batch.usage.output_tokens)} tokens written`);
    facts.push(new Date(1000 * batch.created_at).toLocaleString());
    const failed = counts.failed ? [element("span", { class: "bad" }, `${number.format(counts.failed)} failed`), " · "] : [];
    parts.facts.replaceChildren(...failed, facts.filter(Boolean).join(" · "));
    listErrors(parts.errors, batch.errors ? batch.errors.data : []);
    parts.output = batch.output_file_id;
    parts.failed = batch.error_file_id;
    const allowed = {
      cancel: isLive && batch.status !== "cancelling", output: batch.output_file_id, errors: batch.error_file_id,
      report: batch.in_progress_at && done,
    };
    for (const [what, button] of Object.entries(buttons)) button.classList.toggle("hidden", !allowed[what]);
  }

  async function learnNames(batches) {
    if (batches.every((batch) => names.has(batch.input_file_id))) return;
    const files = await client.request("GET", "/v1/files?purpose=batch&limit=1000");
    for (const file of files.data) names.set(file.id, file.filename);
    for (const batch of batches) if (!names.has(batch.input_file_id)) names.set(batch.input_file_id, "a batch");
  }

  async function pages() {
    const found = [];
    let after = "", more = true;
    while (more && found.length < wanted) {
      const page = await client.request("GET", `/v1/batches?limit=${Math.min(100, wanted - found.length)}${after}`);
      found.push(...page.data);
      more = page.has_more;
      after = `&after=${page.last_id}`;
    }
    return [found, more];
  }

  async function look() {
    const isQuiet = [...shown.values()].every((entry) => !entry.isLive);
    if (isQuiet && shown.size && performance.now() - lastLook < 3000) return;
    lastLook = performance.now();
    const [batches, more] = await pages();
    await learnNames(batches);
    const list = document.getElementById("batch-list");
    batches.forEach((batch, at) => {
      if (!shown.has(batch.id)) shown.set(batch.id, made(batch.id));
      const entry = shown.get(batch.id);
      entry.isLive = LIVE.includes(batch.status);
      update(entry, batch);
      if (list.children[at] !== entry.item) list.insertBefore(entry.item, list.children[at] || null);
    });
    document.getElementById("no-batches").classList.toggle("hidden", batches.length > 0);
    document.getElementById("older").classList.toggle("hidden", !more);
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("older").addEventListener("click", () => { wanted += PAGE; lastLook = 0; live.look(); });
  });
  live.onLook(look);
  quire.showNow = () => { lastLook = 0; return live.look(); };
})();
