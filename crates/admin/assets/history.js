// What has been, as far as this page has been told: samples that grow at one end and go at the other, and outages.

const LEG_COLUMNS = ["sent", "received", "flows", "active", "srtt", "loss", "outage"];
export const SPANS = { 1: 900, 60: 86400 };

export class History {
  constructor(step) {
    this.step = step;
    this.clear();
  }

  clear() {
    this.now = 0;
    this.at = [];
    this.gain = [];
    this.legs = [];
    this.outages = [];
  }

  // What to ask for: all that is newer. The end of what is known counts, or outages would be told again and again.
  get since() {
    return this.at.length ? this.at[this.at.length - 1] : 0;
  }

  get begin() {
    return this.now - SPANS[this.step];
  }

  add(answer) {
    // The daemon's clock was set back: what is known may never have been.
    if (answer.now < this.now) {
      this.clear();
      return false;
    }
    this.now = answer.now;
    const before = this.at.length;
    this.at.push(...answer.at);
    this.gain.push(...answer.gain);
    for (const name of new Set([...this.legs, ...answer.legs].map((leg) => leg.name))) {
      this.#extend(name, before, answer);
    }
    this.#forget();
    this.#addOutages(answer.outages);
    return true;
  }

  #extend(name, before, answer) {
    const news = answer.legs.find((leg) => leg.name === name);
    let leg = this.legs.find((known) => known.name === name);
    if (!leg) {
      leg = { name };
      for (const column of LEG_COLUMNS) leg[column] = new Array(before).fill(null);
      this.legs.push(leg);
    }
    if (news) leg.satellite = news.satellite;
    for (const column of LEG_COLUMNS) {
      leg[column].push(...(news ? news[column] : new Array(answer.at.length).fill(null)));
    }
  }

  #forget() {
    const first = this.at.findIndex((at) => at >= this.begin);
    const old = first < 0 ? this.at.length : first;
    if (!old) return;
    this.at.splice(0, old);
    this.gain.splice(0, old);
    for (const leg of this.legs) for (const column of LEG_COLUMNS) leg[column].splice(0, old);
    this.legs = this.legs.filter((leg) => leg.sent.some((value) => value !== null));
  }

  #addOutages(news) {
    for (const outage of news) {
      const known = this.outages.find((other) => other.leg === outage.leg && other.began === outage.began);
      if (known) known.ended = outage.ended;
      else this.outages.push(outage);
    }
    this.outages.sort((a, b) => a.began - b.began);
    // A leg has one outage at a time: the end of one that the next follows at once is not told.
    const next = new Map();
    for (const outage of [...this.outages].reverse()) {
      outage.ended ??= next.get(outage.leg) ?? null;
      next.set(outage.leg, outage.began);
    }
    this.outages.splice(0, this.outages.length - 1000);
  }
}
