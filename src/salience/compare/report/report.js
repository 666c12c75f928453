"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const view = { hidden: new Set(), all: false };

  const draw = (id) => Charts.draw(document.getElementById(id), figures[id], view);
  const drawAll = () => Object.keys(figures).forEach(draw);

  function toggle(event) {
    const button = event.currentTarget;
    const method = Number(button.dataset.method);
    const shown = view.hidden.delete(method) || !view.hidden.add(method);
    button.setAttribute("aria-pressed", String(shown));
    drawAll();
  }

  function toggleFirst(event) {
    view.all = !view.all;
    event.currentTarget.setAttribute("aria-pressed", String(view.all));
    drawAll();
  }

  // ---------------------------------------------------------------------------- heads of columns

  const help = document.body.appendChild(document.createElement("div"));
  help.className = "help";
  help.setAttribute("role", "tooltip");
  help.id = "help";

  function explain(event) {
    const head = event.currentTarget;
    help.textContent = head.dataset.help;
    help.style.display = "block";
    const at = head.getBoundingClientRect();
    const left = Math.min(at.left, root.clientWidth - help.offsetWidth - 8);
    const above = at.bottom + help.offsetHeight + 8 > innerHeight;
    help.style.left = `${Math.max(8, left)}px`;
    help.style.top = `${above ? at.top - help.offsetHeight - 6 : at.bottom + 6}px`;
    head.setAttribute("aria-describedby", "help");
  }

  function hideHelp() {
    help.style.display = "none";
  }

  // Without scripts a head has a title; ours also comes by keyboard and by touch.
  function helpful(head) {
    head.dataset.help = head.title;
    head.removeAttribute("title");
    for (const name of ["pointerenter", "focus", "click"]) head.addEventListener(name, explain);
    for (const name of ["pointerleave", "blur"]) head.addEventListener(name, hideHelp);
  }

  document.querySelectorAll(".term").forEach(helpful);
  addEventListener("keydown", (event) => event.key === "Escape" && hideHelp());
  addEventListener("scroll", hideHelp, true);

  // --------------------------------------------------------------------------------------- paper

  // On paper: light, as wide as the page, nothing folded away.
  function onPaper(printing) {
    root.toggleAttribute("data-print", printing);
    if (printing) document.querySelectorAll("details").forEach((each) => (each.open = true));
    drawAll();
  }

  document.querySelectorAll("[data-method]").forEach((each) => each.addEventListener("click", toggle));
  document.querySelectorAll("[data-first]").forEach((each) => each.addEventListener("click", toggleFirst));
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", drawAll));
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawAll();
    width = innerWidth;
  });
  drawAll();
})();
