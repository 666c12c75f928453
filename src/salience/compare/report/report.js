"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set();
  const touch = matchMedia("(pointer: coarse)").matches;

  // A figure with its colours filled in: "--name" is a CSS variable, light or dark as the page is.
  function painted(value, key, style) {
    if (Array.isArray(value)) return value.map((each) => painted(each, key, style));
    if (value && typeof value === "object") {
      const pairs = Object.entries(value).map(([name, each]) => [name, painted(each, name, style)]);
      return Object.fromEntries(pairs);
    }
    const variable = key.endsWith("color") && typeof value === "string" && value.startsWith("--");
    return variable ? style.getPropertyValue(value).trim() : value;
  }

  function draw(id) {
    const place = document.getElementById(id);
    const figure = painted(figures[id], "", getComputedStyle(root));
    for (const trace of figure.data) trace.visible = !hidden.has(trace.meta);
    Object.assign(figure.layout, {
      width: place.clientWidth,
      height: place.clientHeight,
      dragmode: touch ? false : "zoom",
    });
    figure.layout.font.family = getComputedStyle(document.body).fontFamily;
    Plotly.react(place, figure.data, figure.layout, { displayModeBar: false });
  }

  const drawAll = () => Object.keys(figures).forEach(draw);

  function toggle(event) {
    const button = event.currentTarget;
    const method = Number(button.dataset.method);
    const shown = hidden.delete(method) || !hidden.add(method);
    button.setAttribute("aria-pressed", String(shown));
    drawAll();
  }

  // On paper: light, as wide as the page, nothing folded away.
  function onPaper(printing) {
    root.toggleAttribute("data-print", printing);
    if (printing) document.querySelectorAll("details").forEach((each) => (each.open = true));
    drawAll();
  }

  document.querySelectorAll(".legend button").forEach((each) => each.addEventListener("click", toggle));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawAll();
    width = innerWidth;
  });
  drawAll();
})();
