// Charts of the pages: each figure with data-chart is drawn by uPlot, also in parts that come later.
(() => {
  "use strict";
  const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat(); // counts have no fractions
  const grouped = (number) => number.toLocaleString("en"); // as all other numbers on the pages
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const resolved = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value || colour(name);
  };
  const draw = (figure) => {
    if (!window.uPlot || figure.dataset.drawn) return;
    figure.dataset.drawn = "1";
    const { at, series } = JSON.parse(figure.dataset.chart), unit = figure.dataset.unit;
    const axis = { stroke: resolved("--soft"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { show: false } };
    const lines = series.map(({ label, tone }) => ({
      label, stroke: resolved(`--${tone}`), width: 2, points: { show: at.length < 3 },
      value: (_, value) => (value == null ? "–" : `${grouped(value)} ${unit}`),
    }));
    const size = () => ({ width: figure.clientWidth - 26, height: 210 });
    const utc = (moment) => new Date(moment * 1000).toISOString(); // as all other times on the pages
    const time = { label: "UTC", value: (_, moment) => (moment == null ? "–" : utc(moment).slice(0, 16).replace("T", " ")) };
    const times = { ...axis, values: (_, moments) => moments.map((moment) => utc(moment).slice(11, 16)) };
    const plot = new uPlot({
      ...size(), series: [time, ...lines], axes: [times, { ...axis, size: 54, incrs: WHOLE, values: (_, all) => all.map(grouped) }],
      tzDate: (moment) => uPlot.tzDate(new Date(moment * 1000), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(1, high * 1.1)] } },
    }, [at, ...series.map(({ values }) => values)], figure);
    new ResizeObserver(() => plot.setSize(size())).observe(figure);
  };

  const drawAll = (root) => {
    if (root.matches?.("[data-chart]")) draw(root);
    root.querySelectorAll("[data-chart]").forEach(draw);
  };
  document.addEventListener("DOMContentLoaded", () => drawAll(document.body));
  document.addEventListener("htmx:load", (event) => drawAll(event.target));
})();
