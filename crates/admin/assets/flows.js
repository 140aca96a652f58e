// The table of flows: the fastest by default; all of them where it is sorted, filtered or turned over. It never has
// more rows in the document than a page.

import { bytes, count, delay, make, NOTHING, put, rate, span } from "./format.js";
import { Names } from "./names.js";

export const FASTEST = 100;
const narrow = matchMedia("(max-width: 55rem)");

const leg = (row) => row.end.leg + (row.flow.phase === "relaying" ? "" : ", " + row.flow.phase);
const retransmitted = (row) => row.end.retransmissions;
// With how often it has expired in a row.
const timeout = (row) => delay(row.end.rto_s) + (row.end.backoff ? " (" + row.end.backoff + ")" : "");

// Name, whether it is a number, what to sort by, what to show.
const COLUMNS = [
  ["Client", false, (row) => row.flow.client, (row) => row.flow.client],
  ["Server", false, (row) => row.flow.server, (row) => row.flow.server],
  ["Leg", false, (row) => row.end.leg, leg],
  ["Down", true, (row) => row.flow.down_bps, (row) => rate(row.flow.down_bps)],
  ["Up", true, (row) => row.flow.up_bps, (row) => rate(row.flow.up_bps)],
  ["RTT", true, (row) => row.end.srtt_s, (row) => (row.end.srtt_s ? delay(row.end.srtt_s) : NOTHING)],
  ["cwnd", true, (row) => row.end.cwnd, (row) => count(row.end.cwnd)],
  ["RTO (backoff)", true, (row) => row.end.rto_s, timeout],
  ["Retrans", true, retransmitted, (row) => count(row.end.retransmissions)],
  ["Buffered", true, (row) => row.flow.buffered_bytes, (row) => bytes(row.flow.buffered_bytes)],
  ["Age", true, (row) => row.flow.age_s, (row) => span(row.flow.age_s)],
];

export class Flows {
  #rows = [];
  #matching = [];
  #total = 0;
  #ever = 0;
  #pool = [];
  #page = 0;
  #filter = "";
  #sort = null; // { column, up }; none: as the daemon has them, the fastest first
  #complete = true;
  #changed;
  #names = new Names(document.getElementById("names"), () => this.#show());

  // `changed` is called when other flows are wanted than those that are here.
  constructor(changed) {
    this.#changed = changed;
    this.#makeHeaders();
    const filter = document.getElementById("filter");
    filter.addEventListener("input", () => {
      this.#filter = filter.value.trim().toLowerCase();
      this.#turn(0);
    });
    document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("previous").addEventListener("click", () => this.#turn(this.#page - 1));
    document.getElementById("next").addEventListener("click", () => this.#turn(this.#page + 1));
    narrow.addEventListener("change", () => this.#turn(0));
  }

  // What to ask the daemon for.
  get wanted() {
    return this.#filter || this.#sort || this.#page > 0 ? "all" : String(FASTEST);
  }

  // Takes what the daemon said, to the question for `wanted` flows.
  update(flows, totals, satellites, wanted) {
    this.#total = Math.max(totals.flows_open, flows.length);
    this.#ever = totals.flows_total;
    this.#complete = wanted === "all" || flows.length >= totals.flows_open;
    this.#rows = flows.map((flow) => ({ flow, end: interestingEnd(flow, satellites) }));
    this.#show();
  }

  #turn(page) {
    this.#page = Math.max(0, page);
    this.#show();
    if (!this.#complete) this.#changed();
  }

  #makeHeaders() {
    const select = document.getElementById("sort");
    select.append(new Option("fastest first", ""));
    COLUMNS.forEach(([name, number], column) => {
      const header = make("th", number ? "number" : "");
      const button = make("button", "", name);
      button.type = "button";
      button.addEventListener("click", () => this.#sortBy(column));
      header.scope = "col";
      header.setAttribute("role", "columnheader");
      header.append(button);
      document.getElementById("columns").append(header);
      select.append(new Option(name, column));
    });
    select.addEventListener("change", () => {
      this.#sort = null;
      if (select.value === "") this.#turn(0);
      else this.#sortBy(Number(select.value));
      this.#mark();
    });
  }

  // First the interesting way round, then the other one, then as it was.
  #sortBy(column) {
    const first = !COLUMNS[column][1];
    if (this.#sort?.column !== column) this.#sort = { column, up: first };
    else if (this.#sort.up === first) this.#sort = { column, up: !first };
    else this.#sort = null;
    this.#mark();
    this.#turn(0);
  }

  #mark() {
    [...document.getElementById("columns").children].forEach((header, column) => {
      if (this.#sort?.column === column) header.setAttribute("aria-sort", this.#sort.up ? "ascending" : "descending");
      else header.removeAttribute("aria-sort");
    });
    document.getElementById("sort").value = this.#sort ? String(this.#sort.column) : "";
  }

  #arrange() {
    const text = this.#filter;
    const names = this.#names;
    const fields = ({ flow, end }) =>
      [flow.client, flow.server, names.of(flow.client), names.of(flow.server), end.leg, flow.phase];
    const matches = (row) => fields(row).some((field) => field.toLowerCase().includes(text));
    this.#matching = text ? this.#rows.filter(matches) : this.#rows;
    if (!this.#sort) return;
    const { column, up } = this.#sort, [, number, key] = COLUMNS[column];
    const compare = number ? (a, b) => a - b : new Intl.Collator("en", { numeric: true }).compare;
    // Ties stay in the daemon's order.
    this.#matching = [...this.#matching].sort((a, b) => (up ? 1 : -1) * compare(key(a), key(b)));
  }

  #show() {
    this.#arrange();
    const size = narrow.matches ? 25 : FASTEST;
    const all = !this.#complete && !this.#filter ? this.#total : this.#matching.length;
    const pages = Math.max(1, Math.ceil(all / size));
    this.#page = Math.min(this.#page, pages - 1);
    const rows = this.#matching.slice(this.#page * size, (this.#page + 1) * size);
    const body = document.getElementById("rows");
    while (this.#pool.length < rows.length) this.#pool.push(makeRow());
    while (body.children.length > rows.length) body.lastChild.remove();
    rows.forEach((row, index) => {
      COLUMNS.forEach(([, , , show], column) => {
        const cell = this.#pool[index].children[column], text = show(row);
        put(cell, column < 2 ? this.#names.of(text) : text);
        if (column < 2 && cell.title !== text) cell.title = text;
      });
      if (index >= body.children.length) body.append(this.#pool[index]);
    });
    this.#describe(pages, rows.length);
    this.#names.ask(rows.flatMap(({ flow }) => [flow.client, flow.server]));
  }

  #describe(pages, shown) {
    const order = this.#sort ? "by " + COLUMNS[this.#sort.column][0] : "the fastest first";
    const loading = !this.#complete && this.wanted === "all" ? ", loading all…" : "";
    const matching = this.#filter ? `${count(this.#matching.length)} matching of ` : "";
    const now = `${matching}${count(this.#total)} now, ${order}${loading}`;
    put(document.getElementById("shown"), `${now}; ${count(this.#ever)} since the start`);
    put(document.getElementById("page-number"), `${this.#page + 1} of ${pages}`);
    document.getElementById("previous").disabled = this.#page === 0;
    document.getElementById("next").disabled = this.#page >= pages - 1;
    const empty = document.getElementById("empty");
    empty.hidden = shown > 0;
    put(empty, loading ? "Loading all flows…" : this.#filter ? "No flow matches." : "No flow at present.");
  }
}

// The half over the satellite tells how a flow fares; of two such, or of none, the one that is farther away.
function interestingEnd(flow, satellites) {
  const ends = [flow.client_end, flow.server_end];
  const over = ends.filter((end) => satellites.has(end.leg));
  const candidates = over.length ? over : ends;
  return candidates.reduce((a, b) => (b.srtt_s > a.srtt_s ? b : a));
}

function makeRow() {
  const row = make("tr");
  row.setAttribute("role", "row");
  COLUMNS.forEach(([name, number]) => {
    const cell = make("td", number ? "number" : "");
    cell.setAttribute("role", "cell");
    cell.dataset.label = name;
    row.append(cell);
  });
  return row;
}
