// A card for each leg.

import { bytes, count, delay, keep, make, NOTHING, percent, put, rate, span } from "./format.js";

// What a card says, in this order.
const FIGURES = [
  ["RTT", (leg) => delay(leg.srtt_s)],
  ["shortest RTT", (leg) => delay(leg.min_rtt_s)],
  ["loss", (leg) => percent(leg.loss)],
  ["queue", (leg) => (leg.explicit ? delay(leg.explicit.queue_s) : NOTHING)],
  ["sent again", (leg) => count(leg.retransmissions)],
  ["timeouts", (leg) => count(leg.timeouts)],
  ["flows", (leg) => count(leg.flows)],
  ["active", (leg) => count(leg.active)],
  ["sent", (leg) => bytes(leg.sent_bytes)],
  ["received", (leg) => bytes(leg.received_bytes)],
];

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
    card.meter.append(make("div"));
    card.list = make("dl");
    card.values = FIGURES.map(([label]) => {
      const pair = make("div"), figure = make("dd");
      pair.append(make("dt", "", label), figure);
      card.list.append(pair);
      return figure;
    });
    card.element.append(title, card.about, card.meter, card.rate, card.list);
    this.#root.append(card.element);
    return card;
  }
}

function fill(card, leg) {
  const gone = leg.outage_s !== null;
  card.element.classList.toggle("gone", gone);
  put(card.status, gone ? "✕ nothing heard for " + span(leg.outage_s) : leg.active ? "● working" : "○ at rest");
  const measured = leg.explicit?.capacity_bps, capacity = measured || leg.rate_bps;
  const about = [leg.interface ?? "every other interface", leg.congestion, carries(measured, leg.rate_bps)];
  put(card.about, about.filter(Boolean).join(", "));
  card.meter.hidden = !capacity;
  if (capacity) {
    const share = Math.min(100, (100 * leg.sent_bps) / capacity);
    card.meter.firstChild.style.width = share.toFixed(1) + "%";
    card.meter.setAttribute("aria-valuenow", share.toFixed(0));
    card.meter.setAttribute("aria-valuetext", `${rate(leg.sent_bps)} of ${rate(capacity)}`);
  }
  put(card.sends, "sends " + rate(leg.sent_bps));
  put(card.receives, "receives " + rate(leg.received_bps));
  FIGURES.forEach(([, figure], index) => put(card.values[index], figure(leg)));
}

function carries(measured, configured) {
  if (!measured) return configured ? `carries ${rate(configured)} by its configuration` : null;
  const same = !configured || rate(measured) === rate(configured);
  return `carries ${rate(measured)}` + (same ? "" : ` of ${rate(configured)}`);
}
