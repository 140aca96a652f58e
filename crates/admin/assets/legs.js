// A card for each leg.

import { bytes, count, delay, keep, make, percent, put, rate, span } from "./format.js";

// What a card says, in this order; null is left out, where a leg has no such figure.
const FIGURES = [
  ["RTT", (leg) => delay(leg.srtt_s)],
  ["shortest RTT", (leg) => delay(leg.min_rtt_s)],
  ["loss", (leg) => percent(leg.loss)],
  ["queue", (leg) => (leg.explicit ? delay(leg.explicit.queue_s) : null)],
  ["other queue", (leg) => (leg.explicit ? delay(leg.return_queue_s) : null)],
  ["sent again", (leg) => count(leg.retransmissions)],
  ["timeouts", (leg) => count(leg.timeouts)],
  ["flows", (leg) => count(leg.flows)],
  ["active", (leg) => count(leg.active)],
  ["sent", (leg) => bytes(leg.sent_bytes)],
  ["received", (leg) => bytes(leg.received_bytes)],
  ["unsplit out", (leg) => (leg.forwarded ? bytes(total(leg.forwarded.sent_bytes)) : null)],
  ["unsplit in", (leg) => (leg.forwarded ? bytes(total(leg.forwarded.received_bytes)) : null)],
];

// All classes of forwarded bytes.
export const total = (classes) => Object.values(classes).reduce((sum, bytes) => sum + bytes, 0);

export class Legs {
  #root = document.getElementById("legs");
  #cards = new Map();

  show(legs) {
    keep(this.#cards, new Set(legs.map((leg) => leg.name)), (name) => this.#card(name));
    for (const leg of legs) fill(this.#cards.get(leg.name), leg);
  }

  #card(name) {
    const card = { element: make("article", "leg"), status: make("span", "status") };
    card.about = make("p", "muted");
    card.rate = make("p", "rate");
    card.sends = make("span");
    card.receives = make("span");
    card.rate.append(card.sends, card.receives);
    const title = make("h3");
    title.append(make("span", "", name), card.status);
    card.meter = make("div", "meter");
    card.meter.setAttribute("role", "meter");
    card.meter.setAttribute("aria-label", "Rate of " + name);
    card.meter.append(make("div"), make("div"));
    card.why = make("p", "why muted");
    card.list = make("dl");
    card.values = FIGURES.map(([label]) => {
      const pair = make("div"), figure = make("dd");
      pair.append(make("dt", "", label), figure);
      card.list.append(pair);
      return figure;
    });
    card.used = make("p", "muted small");
    card.element.append(title, card.about, card.meter, card.used, card.rate, card.why, card.list);
    this.#root.append(card.element);
    return card;
  }
}

function fill(card, leg) {
  const gone = leg.outage_s !== null;
  card.element.classList.toggle("gone", gone || Boolean(leg.waiting));
  put(card.status, state(leg));
  const measured = leg.explicit?.capacity_bps, capacity = measured || leg.rate_bps;
  const about = [leg.interface ?? "every other interface", leg.congestion, carries(measured, leg.rate_bps)];
  put(card.about, about.filter(Boolean).join(", "));
  card.meter.hidden = card.used.hidden = !capacity;
  if (capacity) showUse(card, leg, capacity);
  put(card.sends, "sends " + rate(leg.sent_bps));
  put(card.receives, "receives " + rate(leg.received_bps));
  const why = explained(leg);
  card.why.hidden = !why;
  put(card.why, why);
  FIGURES.forEach(([, figure], index) => {
    const text = figure(leg), value = card.values[index];
    value.parentElement.hidden = text === null;
    put(value, text ?? "");
  });
}

function state(leg) {
  if (leg.waiting) return "✕ " + leg.waiting;
  if (leg.outage_s !== null) return "✕ nothing heard for " + span(leg.outage_s);
  return leg.active ? "● working" : "○ at rest";
}

// The bar, and the number that it shows: whole percents of the capacity, the split part and what is forwarded.
function showUse(card, leg, capacity) {
  const share = (bps) => Math.round((100 * bps) / capacity);
  const all = share(leg.sent_bps + (leg.forwarded?.sent_bps ?? 0)), split = Math.min(all, share(leg.sent_bps));
  const [first, second] = card.meter.children;
  first.style.width = Math.min(100, split) + "%";
  second.style.width = Math.min(100 - Math.min(100, split), all - split) + "%";
  const unsplit = all > split ? `, ${all - split}\u00a0% unsplit` : "";
  const text = `${all}\u00a0% of ${rate(capacity)} in use${unsplit}`;
  card.meter.setAttribute("aria-valuenow", Math.min(100, all));
  card.meter.setAttribute("aria-valuetext", text);
  put(card.used, text);
}

// Why the round trip is longer than the path, where the queue of the other direction is to blame.
function explained(leg) {
  const queue = leg.return_queue_s;
  if (!queue || leg.min_rtt_s === null || queue < 0.02 || queue < leg.min_rtt_s / 10) return "";
  return `RTT: ${delay(leg.min_rtt_s)} path, ${delay(leg.explicit?.queue_s ?? 0)} queue, and ${delay(queue)} in which ` +
    "acknowledgements wait in the queue of the other direction, behind what comes from the satellite";
}

function carries(measured, configured) {
  if (!measured) return configured ? `configured capacity ${rate(configured)}` : null;
  if (!configured) return `estimated capacity ${rate(measured)}`;
  return `estimated capacity ${rate(measured)}, configured ${rate(configured)}`;
}
