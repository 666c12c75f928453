"use strict";
// Charts as SVG: lines with bands, bars, and strips of modes. Text from data only ever becomes text,
// and every colour is a CSS variable, so light and dark need no other drawing.
const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LONGEST = 32; // characters of a label beside the pointer; the legend has all of it
  const BAR = 56; // pixels of a bar with its label above
  const STRIP = 30;

  function add(parent, tag, attributes = {}, text = null) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return parent.appendChild(element);
  }

  const series = (each) => `var(--series-${each.colour})`;
  const known = (value) => value !== null && value !== undefined;
  const short = (text) => (text.length <= LONGEST ? text : text.slice(0, LONGEST - 1) + "…");

  // Three significant digits, thousands apart: 0.00191, 12.3, 20,000, 1.2e-7.
  function shown(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-4 || size >= 1e9) return value.toExponential(1).replace(".0e", "e");
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  }

  // ------------------------------------------------------------------------------------- scales

  // Round numbers between two, about as many as wanted: a step of 1, 2 or 5 times a power of ten.
  function linearTicks(low, high, wanted) {
    const rough = (high - low) / Math.max(1, wanted);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5].find((each) => each * power >= rough) || 10);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
    return ticks.map((each) => Number(each.toPrecision(12)));
  }

  // Powers of ten; with 2 and 5 between them where there are few; all digits where there is none.
  function logTicks(low, high, wanted) {
    const decades = Math.log10(high / low);
    if (decades < 0.7) return linearTicks(low, high, wanted);
    const digits = decades < 1.7 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / Math.max(2, wanted)));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      if (power % every !== 0) continue;
      ticks.push(...digits.map((digit) => Number((digit * 10 ** power).toPrecision(12))));
    }
    return ticks.filter((each) => each >= low * 0.9999 && each <= high * 1.0001);
  }

  function scale(low, high, from, to, log) {
    const at = log ? Math.log : (value) => value;
    const slope = (to - from) / (at(high) - at(low) || 1);
    const map = (value) => from + (at(value) - at(low)) * slope;
    map.invert = (pixel) => {
      const value = at(low) + (pixel - from) / slope;
      return log ? Math.exp(value) : value;
    };
    return map;
  }

  // ------------------------------------------------------------------------------------- ranges

  const extent = (values) =>
    values.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [values[0], values[0]]);

  function xRange(figure, lines, zoom) {
    if (zoom) return zoom;
    const ends = [...lines.flatMap((line) => line.x), ...(figure.strips || []).map((each) => each.end)];
    const [, last] = extent([figure.least || 0, ...ends.filter(known)]);
    return [0, last > 0 ? last * 1.02 : 1];
  }

  // What is visible decides. Unless all is asked for, the first steps do not: their lines may leave
  // through the top.
  function yRange(figure, lines, [from, to], view) {
    const whole = view.zoom || view.all || !figure.clip;
    const values = [];
    for (const line of lines) {
      line.x.forEach((x, i) => {
        if (x < from || x > to || (!whole && i < line.first)) return;
        values.push(line.y[i], ...(line.low.length ? [line.low[i], line.high[i]] : []));
      });
      if (known(line.mark)) values.push(line.mark[1]);
    }
    const usable = (value) => known(value) && Number.isFinite(value) && (!figure.log || value > 0);
    if (usable(figure.level) && !view.zoom) values.push(figure.level);
    const drawn = values.filter(usable);
    if (!drawn.length) return figure.log ? [0.1, 1] : [0, 1];
    let [low, high] = extent(drawn);
    if (figure.log) {
      const margin = (high / low) ** 0.04 * 1.01;
      return [low / margin, high * margin];
    }
    if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    const margin = 0.05 * (high - low);
    const floor = low >= 0 && low < 0.35 * high ? 0 : low - margin;
    return [floor, high + margin];
  }

  // ------------------------------------------------------------------------------------ drawing

  function axes(svg, figure, box, x, y, ranges) {
    const ticks = figure.log ? logTicks : linearTicks;
    const yTicks = figure.lines ? ticks(...ranges.y, box.height / 46) : [];
    for (const value of yTicks) {
      const at = y(value);
      add(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at });
      const text = shown(value) + (figure.unit || "");
      add(svg, "text", { class: "tick y", x: box.left - 8, y: at + 4, "text-anchor": "end" }, text);
    }
    for (const value of linearTicks(...ranges.x, box.width / 90)) {
      const at = x(value);
      if (figure.bars) add(svg, "line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom });
      const place = { class: "tick x", x: at, y: box.bottom + 18, "text-anchor": "middle" };
      add(svg, "text", place, shown(value));
    }
    add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
    const title = { class: "title", x: (box.left + box.right) / 2, y: box.bottom + 38 };
    add(svg, "text", { ...title, "text-anchor": "middle" }, figure.x.slice(0, 60));
  }

  // The parts of a line between its gaps: places of points that can be drawn.
  function pieces(line, can) {
    const found = [[]];
    line.x.forEach((_, i) => {
      if (can(i)) found.at(-1).push(i);
      else if (found.at(-1).length) found.push([]);
    });
    return found.filter((piece) => piece.length);
  }

  function drawLines(svg, figure, lines, box, x, y, id) {
    const clip = add(add(svg, "clipPath", { id: `${id}-clip` }), "rect", {
      x: box.left, y: box.top - 2, width: box.width + 6, height: box.height + 4,
    });
    const inside = add(svg, "g", { "clip-path": `url(#${clip.parentNode.id})` });
    const usable = (value) => known(value) && (!figure.log || value > 0);
    for (const line of lines) {
      for (const piece of pieces(line, (i) => usable(line.low[i]) && usable(line.high[i]))) {
        const around = [...piece.map((i) => [i, line.high[i]]), ...[...piece].reverse().map((i) => [i, line.low[i]])];
        const points = around.map(([i, value]) => `${x(line.x[i]).toFixed(1)},${y(value).toFixed(1)}`);
        const style = `fill: ${series(line)}; opacity: ${figure.pale}`;
        add(inside, "polygon", { class: "band", points: points.join(" "), style });
      }
    }
    if (usable(figure.level)) drawLevel(inside, figure, box, y(figure.level));
    for (const line of lines) {
      for (const piece of pieces(line, (i) => usable(line.y[i]))) {
        const points = piece.map((i) => `${x(line.x[i]).toFixed(1)},${y(line.y[i]).toFixed(1)}`);
        const look = { "stroke-dasharray": line.dashes, "data-place": line.place, style: `stroke: ${series(line)}` };
        add(inside, "polyline", { class: "line", points: points.join(" "), ...look });
        if (!line.points && piece.length > 1) continue;
        for (const i of piece) {
          const at = { cx: x(line.x[i]), cy: y(line.y[i]), r: 3.2 };
          add(inside, "circle", { class: "point", ...at, style: `fill: ${series(line)}` });
        }
      }
    }
    drawMarks(svg, lines.filter((line) => known(line.mark)), box, x, y, usable);
  }

  function drawLevel(parent, figure, box, at) {
    add(parent, "line", { class: "level", x1: box.left, x2: box.right, y1: at, y2: at });
    const place = { class: "level-text", x: box.left + 4, y: at - 5 };
    if (figure.level_text) add(parent, "text", place, figure.level_text);
  }

  // Where a line first reached the level, with the number that the table has for it.
  function drawMarks(svg, lines, box, x, y, usable) {
    const placed = [];
    for (const line of lines) {
      const value = line.mark[1];
      const at = x(line.mark[0]);
      if (!usable(value) || at < box.left - 1 || at > box.right + 7) continue;
      const style = `fill: ${series(line)}`;
      add(svg, "circle", { class: "mark", cx: at, cy: y(value), r: 5.5, style });
      if (!line.note) continue;
      let below = y(value) + 20;
      while (placed.some(([px, py]) => Math.abs(px - at) < 48 && Math.abs(py - below) < 14)) below += 14;
      if (below > box.bottom - 2) below = y(value) - 12 - 14 * placed.length;
      placed.push([at, below]);
      const edge = at > box.right - 30 ? "end" : at < box.left + 30 ? "start" : "middle";
      add(svg, "text", { class: "note-text", x: at, y: below, "text-anchor": edge, style }, line.note);
    }
  }

  function drawBars(svg, figure, bars, box, x) {
    if (known(figure.level)) {
      const at = x(figure.level);
      add(svg, "line", { class: "base", x1: at, x2: at, y1: box.top, y2: box.bottom });
    }
    bars.forEach((bar, place) => {
      const top = box.top + place * BAR;
      const label = add(svg, "text", { class: "bar-text", x: box.left, y: top + 20 });
      label.appendChild(document.createElementNS(SVG, "tspan")).textContent = short(bar.label);
      label.firstChild.setAttribute("class", "name");
      label.append(`  ${bar.text}`);
      const size = { x: box.left, y: top + 28, width: Math.max(0, x(bar.length || 0) - box.left), height: 18 };
      add(svg, "rect", { class: "bar", "data-place": bar.place, ...size, style: `fill: ${series(bar)}` });
      for (const dot of bar.dots.filter(known)) {
        const at = { cx: x(dot), cy: top + 37, r: 4 };
        add(svg, "circle", { class: "mark", ...at, style: `fill: ${series(bar)}` });
      }
    });
  }

  // When a sampler was on, and how: a row of coloured stretches for each run.
  function drawStrips(svg, figure, strips, box, x) {
    strips.forEach((strip, place) => {
      const top = box.top + place * STRIP;
      add(svg, "text", { class: "strip-text", "data-place": strip.place, x: 2, y: top + 18 }, strip.short);
      for (const part of strip.parts) {
        const [from, to] = [x(part.from), x(part.to)];
        const size = { x: from, y: top + 4, width: Math.max(1, to - from), height: 20 };
        const stretch = add(svg, "rect", { class: `mode ${part.mode}`, ...size });
        add(stretch, "title", {}, part.why);
        if (to - from < 8 * part.mode.length + 8) continue;
        const at = { class: `mode-text ${part.mode}`, x: (from + to) / 2, y: top + 18, "text-anchor": "middle" };
        add(svg, "text", at, part.mode);
      }
    });
  }

  // ------------------------------------------------------------------------------------ pointer

  function nearest(line, value) {
    let best = 0;
    line.x.forEach((each, i) => {
      if (Math.abs(each - value) < Math.abs(line.x[best] - value)) best = i;
    });
    return best;
  }

  function tip(place) {
    const found = place.querySelector(".tip");
    if (found) return found;
    const made = document.createElement("div");
    made.className = "tip";
    made.setAttribute("role", "status");
    return place.appendChild(made);
  }

  // The values of all lines near a position, in a box and on a line across the chart.
  function point(place, value) {
    const { figure, lines, x, box } = place.drawn;
    if (!lines || !lines.some((line) => line.x.length)) return;
    const near = lines.filter((line) => line.x.length).map((line) => [line, nearest(line, value)]);
    const [leader, at] = near.reduce((best, each) =>
      Math.abs(each[0].x[each[1]] - value) < Math.abs(best[0].x[best[1]] - value) ? each : best);
    const here = leader.x[at];
    place.cursor = here;
    const box_ = tip(place);
    box_.replaceChildren();
    const head = box_.appendChild(document.createElement("p"));
    head.textContent = `${shown(here)} ${figure.x.split(",")[0]}`;
    for (const [line, i] of near) {
      const text = box_.appendChild(document.createElement("p"));
      const key = text.appendChild(document.createElement("i"));
      key.style.background = series(line);
      const around = line.low.length && line.low[i] < line.high[i]
        ? ` (${shown(line.low[i])} to ${shown(line.high[i])})` : "";
      const number = known(line.y[i]) ? shown(line.y[i]) + (figure.unit || "") : "not finite";
      text.append(`${short(line.label)}: ${number}${around}`);
    }
    const across = place.querySelector(".cursor");
    for (const side of ["x1", "x2"]) across.setAttribute(side, x(here));
    across.style.display = "";
    box_.style.display = "block";
    const left = x(here) + 14 + box_.offsetWidth < place.clientWidth ? x(here) + 14 : x(here) - 14 - box_.offsetWidth;
    box_.style.left = `${Math.max(0, Math.min(left, place.clientWidth - box_.offsetWidth))}px`;
    box_.style.top = `${box.top + 4}px`;
  }

  function leave(place) {
    const cursor = place.querySelector(".cursor");
    if (cursor) cursor.style.display = "none";
    tip(place).style.display = "none";
    place.cursor = null;
  }

  function step(place, by) {
    const lines = place.drawn.lines || [];
    const longest = lines.reduce((best, each) => (each.x.length > best.x.length ? each : best), { x: [] });
    if (!longest.x.length) return;
    const at = known(place.cursor) ? nearest(longest, place.cursor) + by : by > 0 ? 0 : longest.x.length - 1;
    point(place, longest.x[Math.max(0, Math.min(longest.x.length - 1, at))]);
  }

  // Point at it, drag to look closer, double-click to go back; the same by the keyboard.
  function follow(place) {
    let begun = null;
    const at = (event) => event.clientX - place.getBoundingClientRect().left;
    place.addEventListener("pointermove", (event) => {
      const { x, box, svg } = place.drawn;
      point(place, x.invert(at(event)));
      if (begun === null) return;
      const [from, to] = [begun, at(event)].sort((a, b) => a - b);
      const chosen = svg.querySelector(".chosen") || add(svg, "rect", { class: "chosen" });
      const size = { x: from, y: box.top, width: to - from, height: box.height };
      for (const [name, value] of Object.entries(size)) chosen.setAttribute(name, value);
    });
    place.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) begun = at(event);
      else point(place, place.drawn.x.invert(at(event)));
    });
    place.addEventListener("pointerup", (event) => {
      if (begun !== null && Math.abs(at(event) - begun) > 8) {
        const { x, box, figure, view } = place.drawn;
        const ends = [begun, at(event)].map((each) => x.invert(Math.max(box.left, Math.min(box.right, each))));
        place.zoom = ends.sort((a, b) => a - b);
        draw(place, figure, view);
      }
      begun = null;
    });
    place.addEventListener("pointerleave", () => {
      begun = null;
      place.querySelector(".chosen")?.remove();
      leave(place);
    });
    place.addEventListener("dblclick", () => reset(place));
    place.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1 };
      if (event.key in moves) step(place, moves[event.key]);
      else if (event.key === "Escape") { reset(place); leave(place); }
      else return;
      event.preventDefault();
    });
    place.addEventListener("blur", () => leave(place));
  }

  function reset(place) {
    place.zoom = null;
    draw(place, place.drawn.figure, place.drawn.view);
  }

  // --------------------------------------------------------------------------------------- draw

  // The figure into its place. `view`: which places of the legend are hidden, and whether the first
  // steps are shown too.
  function draw(place, figure, view) {
    const width = place.clientWidth;
    if (!width) return; // folded away
    const visible = (each) => !view.hidden.has(each.place);
    const [lines, bars, strips] = [figure.lines, figure.bars, figure.strips].map((each) => each?.filter(visible));
    const left = bars ? 12 : strips ? 78 : 58;
    const [right, top, foot] = [width - 14, bars || strips ? 0 : 10, 46];
    if (bars) place.style.height = `${bars.length * BAR + foot + 8}px`;
    if (strips) place.style.height = `${strips.length * STRIP + foot + 4}px`;
    const bottom = place.clientHeight - foot;
    const box = { left, right, top, bottom, width: right - left, height: bottom - top };
    const whole = bars ? [0, 1.02 * Math.max(figure.level || 0, ...bars.flatMap((bar) => [bar.length || 0, ...bar.dots])) || 1] : null;
    const ranges = { x: whole || xRange(figure, lines || [], place.zoom) };
    ranges.y = lines ? yRange(figure, lines, ranges.x, { ...view, zoom: place.zoom }) : [0, 1];
    const x = scale(...ranges.x, left, right, false);
    const y = scale(...ranges.y, bottom, top, figure.log);
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ width, height: place.clientHeight, "aria-hidden": "true" })) svg.setAttribute(name, value);
    axes(svg, figure, box, x, y, ranges);
    if (lines) drawLines(svg, figure, lines, box, x, y, place.id);
    if (bars) drawBars(svg, figure, bars, box, x);
    if (strips) drawStrips(svg, figure, strips, box, x);
    add(svg, "line", { class: "cursor", y1: top, y2: bottom, style: "display: none" });
    if (!place.drawn && lines) follow(place);
    place.querySelector("svg")?.remove();
    place.prepend(svg);
    place.drawn = { figure, view, lines, x, box, svg };
    if (known(place.cursor)) point(place, place.cursor);
  }

  // ------------------------------------------------------------------------------------- the page

  function press(event, view, drawAll) {
    const button = event.target.closest("[data-method], [data-first]");
    if (!button) return;
    const method = Number(button.dataset.method);
    let pressed = (view.all = "first" in button.dataset ? !view.all : view.all);
    if ("method" in button.dataset) pressed = view.hidden.delete(method) || !view.hidden.add(method);
    button.setAttribute("aria-pressed", String(pressed));
    drawAll();
  }

  // On paper: light, as wide as the page, nothing folded away.
  function onPaper(printing, drawAll) {
    document.documentElement.toggleAttribute("data-print", printing);
    if (printing) document.querySelectorAll("details").forEach((each) => (each.open = true));
    drawAll();
  }

  // Draw again when a button is pressed, something is unfolded or printed, or the width changes.
  function listen(view, drawAll) {
    let width = innerWidth;
    addEventListener("click", (event) => press(event, view, drawAll));
    addEventListener("toggle", drawAll, true);
    addEventListener("beforeprint", () => onPaper(true, drawAll));
    addEventListener("afterprint", () => onPaper(false, drawAll));
    addEventListener("resize", () => {
      if (innerWidth !== width) drawAll();
      width = innerWidth;
    });
  }

  return { draw, listen };
})();
