// Curves over the virtual time, as far as it has come; what comes is only hinted at.

import { make, most, short, span } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150;

function draw(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function label(content, x, y, anchor) {
  const element = draw("text", { x, y, "text-anchor": anchor });
  element.textContent = content;
  return element;
}

function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 6, 8, 10].find((digit) => digit * power >= value * 0.9999);
}

const STEPS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200,
];

// Times of ticks on an axis of this length with room for so many.
function ticks(end, room) {
  const step = STEPS.find((step) => end / step <= room) ?? 86400 * Math.ceil(end / room / 86400);
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, index) => index * step);
}

export class Chart {
  static #count = 0;
  #clip = "clip-" + Chart.#count;
  #hatch = "hatch-" + Chart.#count++;
  #data = null;
  #width = 0;

  constructor(root, title, write) {
    this.write = write;
    this.title = title;
    this.element = make("div", "chart");
    this.legend = make("p", "legend muted");
    this.svg = draw("svg", { role: "img", height: HEIGHT });
    this.window = draw("rect", { x: 0, y: 0, width: 0, height: HEIGHT });
    const clip = draw("clipPath", { id: this.#clip });
    clip.append(this.window);
    const size = { width: 6, height: 6 };
    const pattern = draw("pattern", {
      id: this.#hatch, ...size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    });
    const line = draw("line", { class: "hatch-line", x1: 1, x2: 1, y2: 6 });
    pattern.append(draw("rect", { class: "hatch", ...size }), line);
    const definitions = draw("defs");
    definitions.append(clip, pattern);
    this.back = draw("g");
    this.coming = draw("g", { class: "coming" });
    this.past = draw("g", { "clip-path": `url(#${this.#clip})` });
    this.labels = draw("g");
    this.cursor = draw("line", { class: "cursor", y1: 0, y2: HEIGHT });
    this.svg.append(definitions, this.back, this.coming, this.past, this.cursor, this.labels);
    this.element.append(make("h3", "", title), this.legend, this.svg);
    root.append(this.element);
  }

  // Series have a name, values and a class; guides are functions of time or levels, with a name.
  show(data, width, axis) {
    this.#data = data;
    this.#width = width;
    const { times, end, series, guides, outages } = data;
    const below = axis ? 20 : 4;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT + below}`);
    this.svg.setAttribute("height", HEIGHT + below);
    const levels = guides.map((guide) => guide.top ?? 0);
    const top = niceAbove(Math.max(most(series.map(({ values }) => most(values))), ...levels, 1));
    const x = (time) => (time / end) * width;
    const y = (value) => HEIGHT - (value / top) * (HEIGHT - 16);
    const place = ([time, value]) => x(time).toFixed(1) + " " + y(value).toFixed(1);
    const path = (points) => "M" + points.map(place).join("L");
    const curve = (one) => draw("path", {
      class: "curve " + one.pen, d: path(times.map((time, index) => [time, one.values[index]])),
    });
    const grid = (ends) => draw("line", { class: "grid", ...ends });
    const back = [0, top / 2, top].map((level) => grid({ x1: 0, x2: width, y1: y(level), y2: y(level) }));
    const marks = ticks(end, Math.max(2, width / 90));
    back.push(...marks.map((time) => grid({ x1: x(time), x2: x(time), y1: 0, y2: HEIGHT })));
    back.push(...outages.map(({ start_s: start, seconds }) => draw("rect", {
      x: x(start), width: Math.max(1.5, x(Math.min(end, start + seconds)) - x(start)), y: 0, height: HEIGHT,
      fill: `url(#${this.#hatch})`,
    })));
    const limit = (guide) => draw("path", { class: "curve faint limit", d: path(guide.points(end)) });
    back.push(...guides.map(limit));
    this.back.replaceChildren(...back);
    this.coming.replaceChildren(...series.map(curve));
    this.past.replaceChildren(...series.map(curve));
    const labels = [top / 2, top].map((level) => label(short(this.write(level)), 2, y(level) - 3, "start"));
    if (axis) {
      const last = marks.length - 1;
      labels.push(...marks.map((time, index) => {
        const anchor = index === 0 ? "start" : index === last && x(time) > width - 20 ? "end" : "middle";
        return label(short(span(time)), x(time), HEIGHT + 15, anchor);
      }));
    }
    this.labels.replaceChildren(...labels);
    this.#showLegend(series, guides, outages);
    const peaks = series.map((one) => `${one.name} at most ${this.write(most(one.values))}`);
    this.svg.setAttribute("aria-label", `${this.title} over ${span(end)}: ${peaks.join("; ")}`);
  }

  // Shows what has been until the sample of this index.
  moveTo(time, index) {
    if (!this.#data) return;
    const x = (time / this.#data.end) * this.#width;
    this.window.setAttribute("width", x);
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, x);
    this.values.forEach((element, number) => {
      element.textContent = this.write(this.#data.series[number].values[index]);
    });
  }

  #showLegend(series, guides, outages) {
    const key = (pen, name) => {
      const entry = make("span", pen);
      const sign = draw("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
      sign.append(draw("line", { x1: 0, x2: 24, y1: 4, y2: 4 }));
      entry.append(sign, name + " ");
      return entry;
    };
    this.values = series.map(() => make("b"));
    const entries = series.map((one, index) => {
      const entry = key(one.pen, one.name);
      entry.append(this.values[index]);
      return entry;
    });
    entries.push(...guides.map((guide) => key("limit", guide.name)));
    if (outages.length) {
      const entry = make("span");
      entry.append(make("span", "key gone"), "outage");
      entries.push(entry);
    }
    this.legend.replaceChildren(...entries);
  }
}
