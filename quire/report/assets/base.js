// What the other scripts share: the data of the page, elements without HTML, the theme.
"use strict";
const quire = (() => {
  const data = JSON.parse(document.getElementById("quire-data").textContent);

  // Text goes in as text nodes only: nothing from the data is ever parsed as HTML.
  function element(tag, options, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(options || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") node.className = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }

  // The theme is what the system says, unless the reader said otherwise; theme.js has set it once.
  const themed = [];
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = quireTheme.chosen;
  const theme = () => chosen || (system.matches ? "dark" : "light");
  function showTheme() {
    document.documentElement.dataset.theme = theme();
    document.getElementById("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    for (const redraw of themed) redraw();
  }
  system.addEventListener("change", showTheme);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.classList.remove("hidden");
    button.addEventListener("click", () => {
      chosen = theme() === "dark" ? "light" : "dark";
      quireTheme.keep(chosen);
      showTheme();
    });
    for (const copy of document.querySelectorAll("[data-copy]")) {
      copy.classList.remove("hidden");
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
        copy.textContent = "Copied";
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      });
    }
    showTheme();
  });

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Rows travel compressed, in chunks; each is a table of columns.
  async function unpack(chunk) {
    const bytes = Uint8Array.from(atob(chunk), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  return { data, element, color, unpack, onTheme: (redraw) => themed.push(redraw) };
})();
