// Before anything is painted: the reader's last choice of theme, else the system's.
"use strict";
const quireTheme = (() => {
  const NAME = "quire-theme";
  let chosen = null;
  try {
    chosen = localStorage.getItem(NAME);
  } catch { /* storage is off: a choice lasts as long as the page */ }
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
  function keep(theme) {
    try {
      localStorage.setItem(NAME, theme);
    } catch { /* as above */ }
  }
  return { chosen, keep };
})();
