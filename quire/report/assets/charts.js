// Time series with a shared cursor; drag to zoom in, double-click to zoom out.
"use strict";
(() => {
  const { data, element, color, onTheme } = quire;
  const HEIGHT = 190;
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

  function clock(seconds) {
    const s = Math.round(seconds), h = Math.floor(s / 3600), m = Math.floor((s % 3600) / 60);
    const two = (value) => String(value).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
  }

  function legendOf(lines) {
    return lines.map((line, at) => {
      const value = element("b");
      const shown = element("span", {}, element("i", { class: `s${at + 1}` }), line.label, value);
      return { shown, value };
    });
  }

  // A dashed line where the engine was started again: the time in between is left out.
  function restarts(times) {
    return (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = color("--line-strong");
      ctx.setLineDash([4, 4]);
      for (const time of times) {
        const x = Math.round(plot.valToPos(time, "x", true));
        if (x <= bbox.left || x >= bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    };
  }

  function draw(place, chart, times, pauses) {
    const legend = legendOf(chart.lines);
    place.querySelector(".legend").replaceChildren(...legend.map((entry) => entry.shown));
    const host = place.querySelector(".plot");
    host.replaceChildren();
    const format = (value) => value === null || value === undefined ? "" : exact.format(value) + (chart.unit || "");
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const options = {
      width: Math.max(200, host.clientWidth), height: HEIGHT,
      cursor: { sync: { key: `run-${place.dataset.run}` }, y: false, points: { size: 6 } },
      scales: { x: { time: false }, y: { range: (plot, low, high) => [0, chart.top || Math.max(high * 1.08, 1e-9)] } },
      axes: [
        { ...axis, values: (plot, marks) => marks.map(clock), space: 70, size: 28 },
        { ...axis, values: (plot, marks) => marks.map((mark) => short.format(mark) + (chart.unit || "")), size: 52 },
      ],
      series: [{}, ...chart.lines.map((line, at) => ({
        label: line.label, stroke: color(`--s${at + 1}`), width: 1.75, spanGaps: false,
        fill: at === 0 ? `color-mix(in srgb, ${color("--s1")} 10%, transparent)` : undefined, points: { show: false },
      }))],
      hooks: {
        draw: [restarts(pauses)],
        setCursor: [(plot) => {
          const at = plot.cursor.idx;
          chart.lines.forEach((line, number) => { legend[number].value.textContent = at === null || at === undefined ? "" : format(line.values[at]); });
        }],
      },
    };
    return new uPlot(options, [times, ...chart.lines.map((line) => line.values)], host);
  }

  const places = [...document.querySelectorAll(".chart[data-chart]")];
  let plots = [];
  function drawAll() {
    for (const plot of plots) plot.destroy();
    plots = places.map((place) => {
      const series = data.runs[Number(place.dataset.run)].series;
      return draw(place, series.charts[Number(place.dataset.chart)], series.seconds, series.restarts);
    });
  }
  document.addEventListener("DOMContentLoaded", () => {
    drawAll();
    onTheme(drawAll);
    let waiting = null;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        plots.forEach((plot, at) => plot.setSize({ width: Math.max(200, places[at].querySelector(".plot").clientWidth), height: HEIGHT }));
      }, 80);
    });
  });
})();
