// A chart for each leg and a lane for its outages, all over the same time axis.

import { clock, delay, keep, make, moment, NOTHING, percent, put, rate, span } from "./format.js";
import { SPANS } from "./history.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST_BARS = 300;
const HINT = "Point at a chart or at an outage to read it.";

function draw(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export class Charts {
  #root = document.getElementById("charts");
  #readout = document.getElementById("readout");
  #charts = new Map();
  #cursor = null;
  #history = null;

  constructor() {
    put(this.#readout, HINT);
    this.#root.addEventListener("pointermove", (event) => this.#point(event));
    this.#root.addEventListener("pointerdown", (event) => this.#point(event));
    this.#root.addEventListener("pointerleave", () => this.#moveTo(null));
    this.#root.addEventListener("blur", () => this.#moveTo(null));
    this.#root.addEventListener("keydown", (event) => this.#step(event));
    new ResizeObserver(() => this.#history && this.show(this.#history)).observe(this.#root);
  }

  show(history) {
    this.#history = history;
    const names = new Set(history.legs.map((leg) => leg.name));
    keep(this.#charts, names, (name) => new Chart(this.#root, name));
    const width = this.#root.clientWidth;
    const letter = parseFloat(getComputedStyle(this.#root).fontSize);
    const satellites = history.legs.filter((leg) => leg.satellite).length;
    history.legs.forEach((leg, index) => {
      const height = leg.satellite && satellites < 3 ? 128 : 80;
      const axis = index === history.legs.length - 1;
      this.#charts.get(leg.name).show(history, leg, { width, height, letter, axis });
    });
    this.#showCursor();
  }

  #point(event) {
    const box = this.#root.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    this.#moveTo(this.#history ? this.#history.begin + share * SPANS[this.#history.step] : null);
  }

  #step(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.#moveTo(null);
    if (!direction || !this.#history) return;
    event.preventDefault();
    const wide = event.shiftKey ? 30 : 1;
    const next = (this.#cursor ?? this.#history.now) + direction * wide * this.#history.step;
    this.#moveTo(Math.min(this.#history.now, Math.max(this.#history.begin, next)));
  }

  #moveTo(time) {
    this.#cursor = time;
    put(this.#readout, HINT);
    this.#showCursor();
  }

  #showCursor() {
    const history = this.#history;
    const index = history && this.#cursor !== null ? nearest(history.at, this.#cursor, history.step) : -1;
    for (const chart of this.#charts.values()) chart.point(history, index < 0 ? null : history.at[index]);
    if (index < 0) return;
    put(this.#readout, clock(history.at[index]) + " · " + history.legs.map((leg) => value(leg, index)).join(" · "));
  }
}

function value(leg, index) {
  if (leg.sent[index] === null) return leg.name + ": not there";
  const round = leg.srtt[index] === null ? "" : ", RTT " + delay(leg.srtt[index]);
  const loss = leg.loss[index] === null ? "" : ", loss " + percent(leg.loss[index]);
  const gone = leg.outage[index] === null ? "" : ", nothing heard for " + span(leg.outage[index]);
  return leg.name + ": sent " + rate(leg.sent[index]) + ", received " + rate(leg.received[index]) + round + loss + gone;
}

// The index of the sample closest to `time`, or -1 where there is none.
function nearest(at, time, step) {
  let low = 0, high = at.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle] < time) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && time - at[low - 1] < at[low] - time) low -= 1;
  return at.length && Math.abs(at[low] - time) <= 2 * step ? low : -1;
}

// One leg: sent as an area, received as a dashed line, outages hatched over all of the height.
class Chart {
  static #count = 0;

  constructor(root, name) {
    this.element = make("div", "chart");
    this.title = make("h3", "", name);
    this.svg = draw("svg", { role: "img" });
    const hatch = "hatch-" + Chart.#count++;
    const size = { width: 6, height: 6 };
    const pattern = draw("pattern", {
      id: hatch, ...size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    });
    const line = draw("line", { class: "hatch-line", x1: 1, x2: 1, y2: 6 });
    pattern.append(draw("rect", { class: "hatch", ...size }), line);
    const definitions = draw("defs");
    definitions.append(pattern);
    this.hatch = "url(#" + hatch + ")";
    this.grid = draw("g");
    this.gone = draw("g");
    this.area = draw("path", { class: "sent-area" });
    this.sent = draw("path", { class: "sent-line" });
    this.received = draw("path", { class: "received-line" });
    this.labels = draw("g");
    this.cursor = draw("line", { class: "cursor", visibility: "hidden" });
    this.svg.append(definitions, this.grid, this.gone, this.area, this.sent, this.received, this.labels, this.cursor);
    this.element.append(this.title, this.svg);
    root.append(this.element);
  }

  show(history, leg, { width, height, letter, axis }) {
    const below = axis ? 1.6 * letter : 4;
    this.box = { width, height };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height + below}`);
    this.svg.setAttribute("height", height + below);
    const most = Math.max(...leg.sent.map((bps) => bps ?? 0), ...leg.received.map((bps) => bps ?? 0), 1000);
    const top = niceAbove(Math.max(...[leg.sent, leg.received].map((column) => steady(column, history.step)), 1000));
    const x = (time) => ((time - history.begin) / SPANS[history.step]) * width;
    const y = (bps) => Math.max(0, height - (bps / top) * (height - letter));
    const place = ([time, bps]) => [x(time).toFixed(1), y(bps).toFixed(1)];
    const lines = (column) => runs(history, column).map((run) => run.map(place));
    const sent = lines(leg.sent);
    this.sent.setAttribute("d", sent.map(path).join(""));
    this.area.setAttribute("d", sent.map((run) => `${path(run)}V${height}H${run[0][0]}Z`).join(""));
    this.received.setAttribute("d", lines(leg.received).map(path).join(""));
    this.#showGrid(history, { x, y, top, width, height, letter, axis });
    this.#showOutages(history, leg.name, x, height);
    const last = leg.sent.length - 1;
    const label = last < 0 ? leg.name : `${leg.name}: at most ${rate(most)}; last ${value(leg, last)}`;
    this.svg.setAttribute("aria-label", label);
  }

  point(history, time) {
    this.cursor.setAttribute("visibility", time === null ? "hidden" : "visible");
    if (time === null || !this.box) return;
    const x = ((time - history.begin) / SPANS[history.step]) * this.box.width;
    const line = { x1: x, x2: x, y1: 0, y2: this.box.height };
    for (const [key, at] of Object.entries(line)) this.cursor.setAttribute(key, at);
  }

  #showGrid(history, { x, y, top, width, height, letter, axis }) {
    const grid = [], labels = [];
    for (const bps of [0, top / 2, top]) {
      grid.push(draw("line", { class: "grid", x1: 0, x2: width, y1: y(bps), y2: y(bps) }));
      if (bps) labels.push(text(rate(bps).replace(/\.0+(?=\D)/, ""), 2, y(bps) - 3, "start"));
    }
    for (const time of ticks(history, width, letter)) {
      grid.push(draw("line", { class: "grid", x1: x(time), x2: x(time), y1: 0, y2: height }));
      if (axis) labels.push(text(clock(time, false), x(time), height + 1.2 * letter, "middle"));
    }
    this.grid.replaceChildren(...grid);
    this.labels.replaceChildren(...labels);
  }

  #showOutages(history, name, x, height) {
    const bars = within(history).filter((outage) => outage.leg === name).map((outage) => {
      const from = Math.max(0, x(outage.began)), to = x(outage.ended ?? history.now);
      return draw("rect", { x: from, width: Math.max(1.5, to - from), y: 0, height, fill: this.hatch });
    });
    this.gone.replaceChildren(...bars);
  }
}

function text(content, x, y, anchor) {
  const element = draw("text", { x, y, "text-anchor": anchor });
  element.textContent = content;
  return element;
}

const path = (run) => "M" + run.map((point) => point.join(" ")).join("L");

// Pieces without gaps: where the daemon, or the leg, was not there, no line pretends to know.
function runs(history, column) {
  const all = [];
  let run = [];
  history.at.forEach((time, index) => {
    const gap = run.length && time - run[run.length - 1][0] > 3 * history.step;
    if (run.length && (gap || column[index] === null)) {
      all.push(run);
      run = [];
    }
    if (column[index] !== null) run.push([time, column[index]]);
  });
  return run.length ? [...all, run] : all;
}

// What goes on for a while, with some room. When a hole in a stream is closed, all that waited behind it counts for one
// second, which may be many times what the link carries: such a peak ends at the top, and does not set the scale.
function steady(column, step) {
  const length = Math.max(1, Math.round(10 / step));
  let most = 0, sum = 0;
  column.forEach((bps, index) => {
    sum += (bps ?? 0) - (index >= length ? column[index - length] ?? 0 : 0);
    most = Math.max(most, sum / Math.min(length, index + 1));
  });
  return 1.25 * most;
}

function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 8, 10].find((digit) => digit * power >= value);
}

// Round times of day where the browser is, as far apart as their names need.
function ticks(history, width, letter) {
  const room = Math.max(2, Math.floor(width / (6 * letter)));
  const lengths = [60, 120, 180, 300, 600, 3600, 7200, 10800, 21600, 43200];
  const length = lengths.find((step) => SPANS[history.step] / step <= room) ?? 43200;
  const zone = new Date(history.now * 1000).getTimezoneOffset() * 60;
  const times = [];
  // A name at the very edge would be cut off.
  const edge = (SPANS[history.step] * 1.6 * letter) / width;
  const first = Math.ceil((history.begin + edge - zone) / length) * length + zone;
  for (let time = first; time <= history.now - edge; time += length) times.push(time);
  return times;
}

function within(history) {
  const shown = (outage) => outage.began <= history.now && (outage.ended ?? history.now) >= history.begin;
  return history.outages.filter(shown).slice(-MOST_BARS);
}

// The time line of outages, and the same as a list.
export class Lanes {
  #root = document.getElementById("lanes");
  #readout = document.getElementById("readout");
  #list = document.getElementById("outage-list");
  #total = document.getElementById("outage-count");
  #lanes = new Map();
  #listed = "";

  show(history) {
    const shown = within(history);
    const satellites = history.legs.filter((leg) => leg.satellite).map((leg) => leg.name);
    const wanted = new Set([...satellites, ...shown.map((outage) => outage.leg)]);
    keep(this.#lanes, wanted, (name) => this.#lane(name));
    for (const [name, lane] of this.#lanes) {
      this.#showBars(history, lane, shown.filter((outage) => outage.leg === name));
    }
    const known = history.outages.length;
    put(this.#total, known ? `${shown.length} in this time, ${known} known` : "none so far");
    this.#showList(history);
  }

  #lane(name) {
    const lane = { element: make("div", "lane"), track: make("div", "track"), bars: new Map() };
    lane.element.append(make("span", "muted", name), lane.track);
    this.#root.append(lane.element);
    return lane;
  }

  #showBars(history, lane, outages) {
    keep(lane.bars, new Set(outages.map((outage) => outage.began)), () => ({ element: this.#bar(lane) }));
    for (const outage of outages) {
      const bar = lane.bars.get(outage.began).element;
      const share = (time) => 100 * Math.min(1, Math.max(0, (time - history.begin) / SPANS[history.step]));
      const from = share(outage.began);
      bar.style.left = from + "%";
      bar.style.width = share(outage.ended ?? history.now) - from + "%";
      bar.setAttribute("aria-label", sentence(outage, history.now));
    }
  }

  #bar(lane) {
    const bar = make("button", "bar-of-time");
    bar.type = "button";
    for (const event of ["pointerenter", "focus", "click"]) {
      bar.addEventListener(event, () => put(this.#readout, bar.getAttribute("aria-label")));
    }
    for (const event of ["pointerleave", "blur"]) bar.addEventListener(event, () => put(this.#readout, HINT));
    lane.track.append(bar);
    return bar;
  }

  #showList(history) {
    const last = history.outages.slice(-50).reverse();
    const rows = last.map((outage) => [
      outage.leg,
      moment(outage.began, history.now) + "–" + (outage.ended === null ? "" : moment(outage.ended, history.now)),
      span((outage.ended ?? history.now) - outage.began) + (outage.ended === null ? " so far" : ""),
    ]);
    const listed = JSON.stringify(rows);
    if (listed === this.#listed) return;
    this.#listed = listed;
    this.#list.replaceChildren(...rows.map((texts, index) => {
      const item = make("li", last[index].ended === null ? "now" : "");
      item.append(...texts.map((content) => make("span", "", content || NOTHING)));
      return item;
    }));
  }
}

function sentence(outage, now) {
  const length = span((outage.ended ?? now) - outage.began);
  const until = outage.ended === null ? "and it goes on" : "until " + moment(outage.ended, now);
  return `${outage.leg}: nothing heard for ${length}, since ${moment(outage.began, now)}, ${until}`;
}
