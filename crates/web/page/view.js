// What a document shows: figures and charts at a time.

import { Chart } from "./chart.js";
import { bytes, make, most, percent, rate, span } from "./format.js";

// The figures of so many flows.
const MOST_FIGURES = 2;
const pen = (index) => "s" + (index % 8);

export class View {
  #figures = document.getElementById("figures");
  #root = document.getElementById("charts");
  #charts;
  #document = null;

  constructor() {
    this.#charts = [
      new Chart(this.#root, "Received", bytes),
      new Chart(this.#root, "Congestion window of the last leg", bytes),
      new Chart(this.#root, "Queue in front of the link", bytes),
    ];
    new ResizeObserver(() => this.#document && this.#draw()).observe(this.#root);
  }

  get end() {
    return this.#document ? this.#document.end : 1;
  }

  show(run) {
    const times = run.curves.time_s;
    this.#document = { ...run, times, end: Math.max(times[times.length - 1] ?? 0, 1e-6) };
    this.#showFigures();
    this.#draw();
  }

  #draw() {
    const { times, end, curves, limits, outages } = this.#document;
    const padding = parseFloat(getComputedStyle(this.#root).paddingLeft);
    const width = Math.max(200, this.#root.clientWidth - 2 * padding);
    const flows = curves.flows;
    const one = (values) => (flow, index) => ({ name: flow.name, values: values(flow), pen: pen(index) });
    const curve = (values) => flows.map(one(values));
    const received = curve((flow) => flow.received);
    const windows = curve((flow) => flow.legs[flow.legs.length - 1].cwnd);
    const total = most(received.map(({ values }) => most(values)));
    const bdp = limits[0]?.bdp_bytes;
    const level = { name: "bandwidth-delay product", top: bdp, points: (end) => [[0, bdp], [end, bdp]] };
    const common = { times, end, outages, guides: [] };
    const waiting = queues(curves.links, limits.slice(0, flows.length));
    this.#charts[0].show({ ...common, series: received, guides: this.#limit(limits, total) }, width, false);
    this.#charts[1].show({ ...common, series: windows, guides: bdp ? [level] : [] }, width, false);
    this.#charts[2].show({ ...common, series: waiting }, width, true);
    this.moveTo(this.time ?? end);
  }

  // The first flow's limit, as long as the largest download lasts; it stands still in outages.
  #limit(limits, total) {
    const bps = limits[0]?.bps;
    if (!bps || !total) return [];
    const path = this.#document.outages[0]?.link;
    const outages = this.#document.outages.filter(({ link }) => link === path);
    const points = (end) => {
      const line = [[0, 0]];
      const until = (time) => {
        const [from, had] = line[line.length - 1];
        const whole = ((total - had) * 8) / bps;
        if (time - from > whole) line.push([from + whole, total]);
        line.push([time, Math.min(total, had + ((time - from) * bps) / 8)]);
      };
      for (const { start_s: start, seconds } of outages) {
        if (start >= end) break;
        until(start);
        line.push([Math.min(end, start + seconds), line[line.length - 1][1]]);
      }
      until(end);
      return line;
    };
    return [{ name: "limit of the link", points }];
  }

  #showFigures() {
    const { curves } = this.#document;
    const figure = (name, className) => {
      const element = make("div", "figure " + className);
      const [big, small] = [make("p", "big", "–"), make("p", "muted")];
      element.append(make("h2", "", name), big, small);
      return { element, big, small };
    };
    this.flows = curves.flows.slice(0, MOST_FIGURES).map((flow) => figure(flow.name, ""));
    this.gain = this.flows.length === 2 ? figure("Gain by splitting", "") : null;
    if (curves.flows[0]?.name !== "split") this.gain = null;
    const all = [...this.flows, this.gain].filter(Boolean);
    this.#figures.replaceChildren(...all.map(({ element }) => element));
  }

  // Shows the state at a time, in seconds.
  moveTo(time) {
    this.time = time;
    if (!this.#document) return;
    const index = last(this.#document.times, time);
    for (const chart of this.#charts) chart.moveTo(time, index);
    const rates = this.flows.map((figure, number) => this.#showFlow(figure, number, time, index));
    if (this.gain) {
      const gain = rates[0] / rates[1];
      const isKnown = Number.isFinite(gain) && gain > 0;
      this.gain.big.textContent = isKnown ? "×" + gain.toFixed(gain < 10 ? 1 : 0) : "–";
      this.gain.small.textContent = "goodput until now, split to end to end";
    }
  }

  // The goodput until this time, or until the last byte.
  #showFlow({ big, small }, number, time, index) {
    const { curves, results, limits } = this.#document;
    const flow = curves.flows[number];
    const result = results.flows[number];
    const leg = flow.legs[flow.legs.length - 1];
    const received = flow.received[index];
    const isOver = result.finished && received >= result.bytes;
    const isFinal = isOver || index === flow.received.length - 1;
    const bps = isFinal ? result.goodput_bps : time > 0 ? (received * 8) / time : 0;
    big.textContent = rate(bps);
    const limit = limits[number].bps;
    const again = flow.legs.reduce((sum, leg) => sum + leg.retransmissions[index], 0);
    small.textContent = [
      limit ? percent(bps / limit) + " of the limit" : "",
      isOver ? `${bytes(received)} in ${span(result.seconds)}` : bytes(received),
      leg.srtt_s[index] ? `RTT ${Math.round(1000 * leg.srtt_s[index])}\u00a0ms` : "",
      `${again} sent again`,
    ].filter(Boolean).join(" · ");
    return bps;
  }

  // One sentence about the end.
  summary() {
    const { results, curves, limits } = this.#document;
    const outcome = (flow, number) => {
      if (flow.finished) return `${flow.name} ${span(flow.seconds)}`;
      const total = limits[number].bytes === null ? "" : ` of ${bytes(limits[number].bytes)}`;
      return `${flow.name} ${bytes(flow.bytes)}${total} in ${span(flow.seconds)}`;
    };
    const flows = results.flows.slice(0, MOST_FIGURES).map(outcome);
    const shown = curves.flows.length;
    const rest = curves.all_flows > shown ? `; curves of ${shown} of ${curves.all_flows} flows` : "";
    return flows.join(", ") + rest;
  }
}

// The queues at the flows' bottlenecks, or the fullest ones where nothing is known to limit them.
function queues(links, limits) {
  const all = links.flatMap(({ name, forward, reverse }, link) => [
    { name, values: forward, key: link + "true" },
    { name: name + " back", values: reverse, key: link + "false" },
  ]);
  const bottlenecks = limits.map(({ bottleneck }) => bottleneck).filter(Boolean);
  const wanted = new Set(bottlenecks.map(({ link, forward }) => link + String(forward)));
  const found = all.filter(({ key }) => wanted.has(key));
  const fullest = () => all.sort((a, b) => most(b.values) - most(a.values)).slice(0, 2);
  return (found.length ? found : fullest()).map((one, index) => ({ ...one, pen: pen(index) }));
}

// The index of the last sample that is not after a time.
function last(times, time) {
  let low = 0, high = times.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= time) low = middle;
    else high = middle - 1;
  }
  return low;
}
