// How the server is doing, asked once a second while the page is looked at.
"use strict";
quire.live = (() => {
  const { color, onTheme, client, say } = quire;
  const SECONDS = 300, HEIGHT = 150, SMOOTH = 5;
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const seen = []; // { at, written, read, batch, interactive }, a second apart
  const watchers = [];
  const show = (id, text) => { const place = document.getElementById(id); if (place.textContent !== text) place.textContent = text; };
  const STATES = { ready: "good", loading: "warn", restarting: "warn", draining: "warn", failed: "bad" };
  let model = null, isWaitingForKey = false;

  // Tokens per second over the last few looks; an engine that began anew counts from nothing.
  function rate(name) {
    const last = seen.at(-1), first = seen[Math.max(0, seen.length - 1 - SMOOTH)];
    const seconds = last.at - first.at;
    return seconds > 0 ? Math.max(0, last[name] - first[name]) / seconds : 0;
  }

  function take(status) {
    model = status.model;
    show("model", status.model);
    show("state", status.state);
    document.getElementById("state").className = `pill ${STATES[status.state] || "plain"}`;
    const { interactive, batch } = status.lanes;
    seen.push({ at: performance.now() / 1000, written: status.output_tokens, read: status.prompt_tokens, batch: batch.running, interactive: interactive.running });
    while (seen.length > SECONDS) seen.shift();
    show("interactive", whole.format(interactive.running));
    show("interactive-more", `running, ${whole.format(interactive.waiting)} waiting`);
    show("batch", whole.format(batch.running));
    show("batch-more", `running, ${whole.format(batch.waiting)} waiting`);
    show("written", whole.format(rate("written")));
    show("written-more", `${short.format(status.output_tokens)} in all`);
    show("read", whole.format(rate("read")));
    show("read-more", `${short.format(status.prompt_tokens)} in all`);
    show("kv", `${whole.format(100 * status.kv_use)} %`);
    show("restarts", status.restarts ? `engine restarted ${status.restarts} times` : "");
    const first = status.first_token_seconds;
    show("ttft", first === null ? "–" : first < 1 ? `${whole.format(1000 * first)} ms` : `${first.toFixed(1)} s`);
  }

  function options(host, names) {
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    return {
      width: Math.max(200, host.clientWidth), height: HEIGHT, cursor: { show: false }, legend: { show: false },
      scales: { x: { time: false, range: [-SECONDS, 0] }, y: { range: (plot, low, high) => [0, Math.max(high * 1.08, 1)] } },
      axes: [
        { ...axis, values: (plot, marks) => marks.map((mark) => mark ? `${Math.round(-mark / 60)} min` : "now"), splits: [-300, -240, -180, -120, -60, 0], size: 26 },
        { ...axis, values: (plot, marks) => marks.map((mark) => short.format(mark)), size: 46 },
      ],
      series: [{}, ...names.map((name, at) => ({ label: name, stroke: color(`--s${at + 1}`), width: 1.75, points: { show: false } }))],
    };
  }

  const charts = [
    { id: "chart-tokens", names: ["written", "read"], values: (name) => seen.map((one, at) => at ? Math.max(0, one[name] - seen[at - 1][name]) / Math.max(one.at - seen[at - 1].at, 0.001) : null) },
    { id: "chart-rows", names: ["batch", "interactive"], values: (name) => seen.map((one) => one[name]) },
  ];

  function data(chart) {
    const now = seen.length ? seen.at(-1).at : 0;
    return [seen.map((one) => one.at - now), ...chart.names.map(chart.values)];
  }

  function drawAll() {
    for (const chart of charts) {
      const host = document.querySelector(`#${chart.id} .plot`);
      if (chart.plot) chart.plot.destroy();
      host.replaceChildren();
      chart.plot = new uPlot(options(host, chart.names), data(chart), host);
    }
  }

  async function look() {
    try {
      take(await client.request("GET", "/quire/status"));
      isWaitingForKey = false;
      document.getElementById("key").classList.add("hidden");
      for (const chart of charts) if (chart.plot) chart.plot.setData(data(chart));
      await Promise.all(watchers.map((watch) => watch()));
    } catch (error) {
      const isRefused = error.status === 401 || error.status === 403;
      show("state", isRefused ? "key needed" : "no answer");
      document.getElementById("state").className = "pill warn";
      if (isRefused) askForKey(error);
    }
  }

  function askForKey(error) {
    isWaitingForKey = true;
    const place = document.getElementById("key");
    if (place.classList.contains("hidden")) {
      place.classList.remove("hidden");
      document.getElementById("key-value").focus();
    }
    say("key-error", client.isOpen() ? error.message : "", true);
    document.getElementById("key-error").classList.toggle("hidden", !client.isOpen());
  }

  async function watch() {
    if (!document.hidden && !isWaitingForKey) await look();
    setTimeout(watch, 1000);
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("key-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      client.setKey(document.getElementById("key-value").value.trim());
      await look();
      if (document.getElementById("key").classList.contains("hidden")) document.getElementById("key-value").value = "";
    });
    drawAll();
    onTheme(drawAll);
    let waiting = null;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 80); });
    watch();
  });
  return { onLook: (watcher) => watchers.push(watcher), model: () => model, look };
})();
