"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const view = { hidden: new Set(), all: false };

  const draw = (id) => Charts.draw(document.getElementById(id), figures[id], view);
  const drawAll = () => Object.keys(figures).forEach(draw);

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

  Charts.listen(view, drawAll);
  drawAll();
})();
