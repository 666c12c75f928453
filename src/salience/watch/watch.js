"use strict";
(() => {
  const OFTEN = 2000; // milliseconds between two questions
  const RARELY = 10000; // once it is finished, or nobody looks
  const QUIET = 60000; // without news for so long, it is said
  const $ = (id) => document.getElementById(id);
  const view = { hidden: new Set(), all: false };
  let latest = null;
  let received = performance.now();
  let version = "0";

  function make(parent, tag, text = "", attributes = {}) {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // No more exact than it is known: 40 s, 12 min, 2 h 5 min.
  function told(milliseconds) {
    const minutes = Math.round(milliseconds / 60000);
    if (milliseconds < 60000) return `${Math.max(1, Math.round(milliseconds / 1000))} s`;
    if (minutes < 60) return `${minutes} min`;
    return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 1440)} days`;
  }

  // ------------------------------------------------------------------------------------ what is shown

  function showState(problem = "") {
    const age = performance.now() - received;
    const parts = problem ? [problem] : [];
    if (latest && !problem) {
      const { state, progress, left } = latest;
      if (state !== "waiting") parts.push(state);
      if (progress !== null && state === "running") parts.push(`${Math.floor(progress * 100)}% done`);
      if (left !== null) parts.push(`about ${told(Math.max(1000, left * 1000 - age))} left`);
      if (state === "running" && age > QUIET) parts.push(`no news for ${told(age)}: has it ended?`);
    }
    const text = parts.join(" · ");
    if ($("state").textContent !== text) $("state").textContent = text;
  }

  function showProgress(share) {
    const bar = $("progress");
    bar.hidden = share === null;
    if (share === null) return;
    bar.setAttribute("aria-valuenow", String(Math.floor(share * 100)));
    bar.firstElementChild.style.width = `${share * 100}%`;
  }

  function swatch(parent, { colour, dashes }) {
    const svg = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    svg.setAttribute("class", "swatch");
    svg.setAttribute("viewBox", "0 0 26 10");
    svg.setAttribute("aria-hidden", "true");
    const line = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
    const look = { x1: 1, y1: 5, x2: 25, y2: 5, "stroke-dasharray": dashes, style: `stroke: var(--series-${colour})` };
    for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
  }

  function showTable({ columns, lines }, legend) {
    const table = $("now").querySelector("table");
    $("now").hidden = !lines.length;
    const head = document.createElement("tr");
    columns.forEach((column) => make(head, "th", column, { scope: "col" }));
    table.tHead.replaceChildren(head);
    const body = lines.map(([name, ...cells]) => {
      const row = document.createElement("tr");
      const method = make(make(row, "th", "", { scope: "row" }), "div", "", { class: "method" });
      const look = legend.find((each) => each.name === name);
      if (look) swatch(method, look);
      make(method, "span", name);
      cells.forEach((cell) => make(row, "td", cell));
      return row;
    });
    table.tBodies[0].replaceChildren(...body);
  }

  function showLegend(legend) {
    const place = document.querySelector(".legend");
    const names = JSON.stringify(legend);
    if (place.dataset.names === names) return;
    place.dataset.names = names;
    place.replaceChildren();
    legend.forEach((each, at) => {
      const pressed = String(!view.hidden.has(at));
      const button = make(place, "button", "", { type: "button", "aria-pressed": pressed, "data-method": at });
      swatch(button, each);
      make(button, "span", each.name);
    });
    const first = { type: "button", class: "option", "aria-pressed": String(view.all), "data-first": "" };
    make(place, "button", "First steps too", first);
  }

  // Elements of charts are made once and drawn again, so that nothing jumps and the pointer stays.
  function showCharts(charts) {
    $("curves").hidden = !charts.length;
    const wanted = JSON.stringify(charts.map((each) => [each.name, each.panels]));
    if ($("charts").dataset.shown !== wanted) {
      $("charts").dataset.shown = wanted;
      $("charts").replaceChildren();
      for (const chart of charts) {
        const pair = make($("charts"), "div", "", { class: "pair" });
        chart.panels.forEach((title, at) => {
          const figure = make(pair, "figure");
          make(figure, "figcaption", title);
          const labelled = { class: "chart", id: `${chart.name}-${at}`, role: "group", "aria-label": title, tabindex: 0 };
          make(figure, "div", "", labelled);
        });
        if (chart.title) make($("charts"), "p", chart.title, { class: "soft note" });
      }
    }
    drawAll();
  }

  function drawAll() {
    if (!latest) return;
    for (const [id, figure] of Object.entries(latest.figures)) Charts.draw($(id), figure, view);
  }

  function show(data) {
    latest = data;
    document.title = data.progress === null ? data.title : `${Math.floor(data.progress * 100)}% ${data.title}`;
    $("title").textContent = data.title;
    $("lead").textContent = data.lead;
    showProgress(data.progress);
    showTable(data.table, data.legend);
    showLegend(data.legend);
    showCharts(data.charts);
  }

  // ------------------------------------------------------------------------------------------ asking

  async function ask() {
    const answer = await fetch(`/data?seen=${version}`, { cache: "no-store" });
    if (answer.status === 204) return;
    if (!answer.ok) throw new Error(String(answer.status));
    const data = await answer.json();
    version = data.version;
    received = performance.now();
    show(data);
  }

  async function poll() {
    let problem = "";
    try {
      await ask();
    } catch {
      problem = "salience watch does not answer any more: is it still running?";
    }
    showState(problem);
    const rarely = document.hidden || problem || latest?.state === "finished";
    setTimeout(poll, latest?.more ? 0 : rarely ? RARELY : OFTEN);
  }

  Charts.listen(view, drawAll);
  document.addEventListener("visibilitychange", () => document.hidden || ask().then(() => showState(), () => {}));
  poll();
})();
