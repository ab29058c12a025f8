"use strict";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1080, HEIGHT = 440, LEFT = 66, RIGHT = 20, TOP = 20, BOTTOM = 52;
const IDENTICAL = 100;
const STILL = matchMedia("(prefers-reduced-motion: reduce)").matches;

function element(parent, name, attributes = {}, text = null) {
  const made = parent.namespaceURI === SVG || name === "svg"
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function option(select, value, text) {
  element(select, "option", {value}, text);
}

/* A scale from values to places, linear or logarithmic, with round ticks. */
function scale(values, start, end, logarithmic) {
  const turn = logarithmic ? Math.log : x => x;
  const low = turn(Math.min(...values)), high = turn(Math.max(...values));
  const edge = (high - low || Math.abs(high) || 1) * 0.05;
  const place = x => start + (turn(x) - low + edge) / (high - low + 2 * edge) * (end - start);
  const between = x => turn(x) >= low - edge && turn(x) <= high + edge;
  const ticks = (logarithmic ? roundLogarithmic() : roundLinear(low - edge, high + edge)).filter(between);
  return {place, ticks};
}

/* Budgets that were asked for, then others: ticks that come first keep their places. */
function budgets(points, ticks) {
  return [...new Set([...points.map(p => p.asked).filter(Boolean).sort((a, b) => a - b), ...ticks])];
}

function roundLinear(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const size = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => (high - low) / s <= 6);
  const first = Math.ceil(low / size);
  return Array.from({length: 8}, (_, i) => Number(((first + i) * size).toPrecision(10)));
}

function roundLogarithmic() {
  const ticks = [];
  for (let power = -5; power <= 3; power++)
    for (const m of [1, 1.5, 2, 3, 5, 7]) ticks.push(Number((m * 10 ** power).toPrecision(6)));
  return ticks;
}

function written([mean, margin], {digits, unit}) {
  const text = unit === "dB" && mean >= IDENTICAL ? "identical" : mean.toFixed(digits);
  return text + (margin ? ` ± ${margin.toFixed(digits)}` : "") + (unit ? ` ${unit}` : "");
}

function within(y) {
  return Math.min(HEIGHT - BOTTOM, Math.max(TOP, y));
}

function chart(root, data) {
  const up = root.querySelector(".up"), across = root.querySelector(".across");
  const plot = root.querySelector(".plot"), tip = root.querySelector(".tip");
  const hidden = new Set(data.methods.filter(one => !one.shown).map(one => one.name));
  /* Of a cache inside the model, all that its work amounts to. */
  const side = p => across.value === "evaluations" && p.values["equivalent-evaluations"] || p.values[across.value];
  const styles = new Map(data.methods.map(one => [one.name, one]));
  data.quantities.forEach(q => option(up, q.name, q.title));
  data.across.forEach(name => option(across, name, name));

  function points() {
    const shown = data.quantities.find(q => q.name === up.value);
    const logarithmic = /lpips|drift/.test(shown.name);
    const drawn = data.points.filter(p => !hidden.has(p.method)
      && p.values[up.value] && side(p)
      && !(shown.unit === "dB" && p.values[up.value][0] >= IDENTICAL)
      && !(logarithmic && p.values[up.value][0] <= 0));
    return {shown, logarithmic, drawn};
  }

  function axes(svg, x, y) {
    for (const tick of y.ticks) {
      element(svg, "line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y.place(tick), y2: y.place(tick)});
      element(svg, "text", {x: LEFT - 8, y: y.place(tick) + 4, "text-anchor": "end"}, String(tick));
    }
    const taken = [];
    for (const tick of x.ticks) {
      const at = x.place(tick);
      if (taken.some(other => Math.abs(other - at) < 34)) continue;
      taken.push(at);
      element(svg, "line", {class: "grid", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM});
      element(svg, "text", {x: at, y: HEIGHT - BOTTOM + 20, "text-anchor": "middle"}, String(tick));
    }
    const equivalent = data.points.some(p => p.values["equivalent-evaluations"]) ? ", or equivalent ones" : "";
    const name = across.value === "evaluations" ? "evaluations of the model" + equivalent : "speedup";
    element(svg, "text", {x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 10, "text-anchor": "middle"}, name);
  }

  function series(svg, method, mine, x, y, {shown, logarithmic}) {
    const {colour, ours} = styles.get(method);
    const group = element(svg, "g", {class: ours ? "ours" : "", "data-method": method});
    mine.sort((a, b) => side(a)[0] - side(b)[0]);
    const at = p => [x.place(side(p)[0]), y.place(p.values[up.value][0])];
    element(group, "path", {class: "line", stroke: colour, d: "M" + mine.map(p => at(p).map(v => v.toFixed(1))).join("L")});
    for (const point of mine) {
      const [cx, cy] = at(point), [mean, margin] = point.values[up.value];
      if (ours && margin) {
        const [y1, y2] = [mean - margin, mean + margin].map(v => within(v > 0 || !logarithmic ? y.place(v) : HEIGHT));
        element(group, "line", {class: "margin", stroke: colour, x1: cx, x2: cx, y1, y2});
      }
      const asked = point.asked ? `asked for ${point.asked}, ` : "";
      const spent = point.values.evaluations[0].toFixed(1).replace(".0", "");
      const equivalent = point.values["equivalent-evaluations"] ? ` (work of ${point.values["equivalent-evaluations"][0].toFixed(1)})` : "";
      const fast = point.values.speedup ? `, ${point.values.speedup[0].toFixed(2)} times faster` : "";
      const said = `${method}: ${asked}${spent} evaluations${equivalent}${fast}; ${shown.title.replace(/ \([^)]*\)$/, "")} ${written(point.values[up.value], shown)}`;
      const mark = element(group, "circle", {class: "point", fill: colour, cx, cy, r: ours ? 7 : 5.5, tabindex: 0, role: "img", "aria-label": said});
      const tell = () => { say(said, cx, cy); focusOn(svg, method); };
      const rest = () => { say("", 0, 0); focusOn(svg, null); };
      mark.addEventListener("mouseenter", tell);
      mark.addEventListener("focus", tell);
      mark.addEventListener("mouseleave", rest);
      mark.addEventListener("blur", rest);
    }
  }

  function say(text, cx, cy) {
    tip.textContent = text;
    tip.classList.toggle("flipped", cx > WIDTH / 2);
    tip.style.left = `${cx / WIDTH * 100}%`;
    tip.style.top = `${cy / HEIGHT * 100}%`;
  }

  function focusOn(svg, method) {
    for (const group of svg.querySelectorAll("g"))
      group.classList.toggle("faint", method !== null && group.dataset.method !== method);
  }

  function draw() {
    plot.querySelector("svg")?.remove();
    const {shown, logarithmic, drawn} = points();
    const svg = element(plot, "svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `${shown.title} over ${across.value}`});
    if (!drawn.length) return element(svg, "text", {x: LEFT, y: TOP + 20}, "Nothing to show.");
    const x = scale(drawn.map(p => side(p)[0]), LEFT, WIDTH - RIGHT, true);
    const y = scale(drawn.map(p => p.values[up.value][0]), HEIGHT - BOTTOM, TOP, logarithmic);
    if (across.value === "evaluations") x.ticks = budgets(drawn, x.ticks);
    axes(svg, x, y);
    const names = [...styles.keys()].sort((a, b) => styles.get(a).ours - styles.get(b).ours);
    for (const method of names) {
      const mine = drawn.filter(p => p.method === method);
      if (mine.length) series(svg, method, mine, x, y, {shown, logarithmic});
    }
  }

  const legend = root.querySelector(".legend");
  for (const [method, {colour, ours, shown}] of styles) {
    const button = element(legend, "button", {type: "button", "aria-pressed": String(shown), class: ours ? "ours" : ""});
    element(button, "i", {}).style.background = colour;
    button.append(method);
    button.addEventListener("click", () => {
      hidden.has(method) ? hidden.delete(method) : hidden.add(method);
      button.setAttribute("aria-pressed", String(!hidden.has(method)));
      draw();
    });
    button.addEventListener("mouseenter", () => focusOn(plot, hidden.has(method) ? null : method));
    button.addEventListener("mouseleave", () => focusOn(plot, null));
  }
  up.addEventListener("change", draw);
  across.addEventListener("change", draw);
  root.hidden = false;
  draw();
}

function viewer(root, shelves) {
  const find = name => root.querySelector(name);
  const sample = find(".sample"), sides = [find(".left"), find(".right")];
  const layers = [find(".over"), find(".under")], captions = [find(".of-left"), find(".of-right")];
  const stage = find(".stage"), play = find(".play");
  const name = p => p.method + (p.evaluations && p.method !== "full" ? `, ${p.evaluations}` : "");
  const label = s => (s.prompt.length > 70 ? s.prompt.slice(0, 69) + "…" : s.prompt) + `, seed ${s.seed}`;

  /* All films share a clock that starts at `origin` and, paused, is held at a time. */
  let origin = 0, held = STILL ? 0 : null;

  function set(film) {
    if (held === null) film.startTime = origin;
    else { film.pause(); film.currentTime = held; }
  }

  function roll(made, {width, height, frames, seconds}) {
    Object.assign(made.style, {aspectRatio: `${width} / ${height}`, objectFit: "cover"});
    const positions = {objectPosition: ["0 0", "0 100%"]};
    const easing = `steps(${frames}, jump-none)`;
    set(made.animate(positions, {duration: 1000 * seconds, iterations: Infinity, easing}));
  }

  function media(parent, picture) {
    const kind = picture.video ? "video" : "img";
    const made = element(parent, kind, {src: picture.address});
    if (picture.video) Object.assign(made, {muted: true, loop: true, autoplay: held === null, playsInline: true});
    else made.alt = name(picture);
    if (picture.film) roll(made, picture.film);
    made.addEventListener(picture.video ? "loadeddata" : "load", () =>
      made.classList.toggle("small", (made.naturalWidth || made.videoWidth) <= 256));
    return made;
  }

  function show() {
    const shelf = shelves[sample.value];
    sides.forEach((side, i) => {
      const picture = shelf.pictures.find(p => name(p) === side.value);
      layers[i].replaceChildren();
      captions[i].replaceChildren();
      media(layers[i], picture);
      element(captions[i], "b", {}, `${["Left", "Right"][i]}: ${name(picture)}`);
      captions[i].append(`\n${picture.facts}`);
    });
    for (const button of root.querySelectorAll(".strip button"))
      button.setAttribute("aria-pressed", String(button.dataset.name === sides[1].value));
    const videos = [...stage.querySelectorAll("video")];
    play.hidden = !videos.length && !stage.getAnimations({subtree: true}).length;
    play.textContent = held === null ? "Pause" : "Play";
    videos.forEach(video => { video.currentTime = 0; });
    if (videos.length > 1) videos[0].addEventListener("timeupdate", () => {
      if (Math.abs(videos[1].currentTime - videos[0].currentTime) > 0.05)
        videos[1].currentTime = videos[0].currentTime;
    });
  }

  function choose() {
    const shelf = shelves[sample.value], names = shelf.pictures.map(name);
    const strip = find(".strip");
    strip.replaceChildren();
    sides.forEach((side, i) => {
      const before = side.value;
      side.replaceChildren();
      names.forEach(text => option(side, text, text));
      side.value = names.includes(before) ? before : names[Math.min(i, names.length - 1)];
    });
    for (const picture of shelf.pictures) {
      const button = element(strip, "button", {type: "button", "data-name": name(picture)});
      media(button, picture);
      button.append(name(picture));
      button.addEventListener("click", () => { sides[1].value = name(picture); show(); });
    }
    show();
  }

  shelves.forEach((shelf, i) => option(sample, i, label(shelf)));
  sample.addEventListener("change", choose);
  sides.forEach(side => side.addEventListener("change", show));
  find("input").addEventListener("input", event => stage.style.setProperty("--at", `${event.target.value}%`));
  play.addEventListener("click", () => {
    const videos = [...stage.querySelectorAll("video")], going = held === null;
    const now = document.timeline.currentTime;
    if (going) held = now - origin;
    else [origin, held] = [now - held, null];
    root.getAnimations({subtree: true}).forEach(set);
    videos.forEach(video => { video.currentTime = videos[0].currentTime; going ? video.pause() : video.play(); });
    play.textContent = going ? "Play" : "Pause";
  });
  root.hidden = false;
  choose();
}

function sortable(table) {
  const body = table.tBodies[0], headings = [...table.tHead.rows[1].cells];
  const read = (row, i) => {
    if (i === 0) return row.cells[0].textContent;
    const value = row.cells[i]?.dataset.value;
    return value === undefined ? null : Number(value);
  };
  headings.forEach((heading, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const first = heading.dataset.better === "higher" ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = before === first ? other : first;
      headings.forEach(one => one.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const compare = (a, b) => {
        const [x, y] = [read(a, i), read(b, i)];
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

/* Buttons that show the table of one budget, or all. */
function tabs(root) {
  const grids = [...root.querySelectorAll(".grid")], bar = root.querySelector(".tabs");
  if (grids.length < 3) return;
  const buttons = ["All", ...grids.map(grid => grid.dataset.title)].map((title, i) => {
    const button = element(bar, "button", {type: "button", "aria-pressed": String(i === 0)}, title);
    button.addEventListener("click", () => {
      grids.forEach((grid, k) => { grid.hidden = i > 0 && k !== i - 1; });
      buttons.forEach(one => one.setAttribute("aria-pressed", String(one === button)));
    });
    return button;
  });
}

for (const study of document.querySelectorAll(".study")) {
  const data = JSON.parse(study.querySelector(".data").textContent);
  const plotted = study.querySelector(".chart"), pictured = study.querySelector(".viewer");
  if (plotted) chart(plotted, data);
  if (pictured) viewer(pictured, data.shelves);
  tabs(study.querySelector(".tables"));
}
document.querySelectorAll("table").forEach(sortable);
