// What became of new connections, what the rules have matched, and how much of each limit is used.

import { bytes, count, keep, make, put } from "./format.js";

// Verdicts as people say them, in this order; those without a connection are left out.
const VERDICTS = {
  split: "split",
  pass: "passed by rules",
  snoop: "snooped",
  bundle: "handed to the bundle node",
  reject: "datagrams rejected",
  limit: "beyond a limit of all",
  client_limit: "beyond a limit of the client",
  rate: "beyond the connection rate",
  client_rate: "beyond the client’s connection rate",
  not_ready: "passed while draining, bypassed or not ready",
  declined: "passed by the daemon, which had the SYN",
  translated: "passed: destination translated here",
  unreadable: "passed: fragment or extension header",
  link_local: "passed: link-local client",
  bridged: "passed: between ports of a bridge",
  node_absent: "passed: the bundle node does not listen",
};

const OTHERWISE = new Set(["split", "reject"]);

// Connections that were not split, whatever the reason.
export const notSplit = (policy) =>
  policy.verdicts.filter(({ verdict }) => !OTHERWISE.has(verdict)).reduce((sum, { count }) => sum + count, 0);

export class Policy {
  #verdicts = new List("verdicts");
  #rules = new List("rules");
  #limits = new List("limits");

  show({ policy, limits }) {
    const counted = policy.verdicts.filter((report) => report.count > 0 || report.verdict === "split");
    this.#verdicts.show(counted.map(({ verdict, count: seen }) => [VERDICTS[verdict] ?? verdict, count(seen), false]));
    document.getElementById("no-rules").hidden = policy.rules.length > 0;
    this.#rules.show(policy.rules.map(rule));
    this.#limits.show(uses(limits));
  }
}

function rule({ place, action, conditions, comment, matched }) {
  return [`${place}. ${action} ${conditions}` + (comment ? ` (${comment})` : ""), count(matched), false];
}

function uses(limits) {
  const use = (name, { used, most }, show) => most === null ? null : [name, `${show(used)} of ${show(most)}`, used >= most];
  const perClient = limits.connection_rate_per_client;
  return [
    use("connections", limits.connections, count),
    use("connections of one client, at most", limits.connections_per_client, count),
    use("waiting for their server", limits.connecting, count),
    use("memory in buffers", limits.buffered_bytes, bytes),
    use("new connections per second", limits.connection_rate, count),
    perClient === null ? null : ["new per second of one client", `at most ${count(perClient)}`, false],
    limits.at_limit ? ["new connections at a limit", limits.at_limit === "pass" ? "pass unsplit" : "are refused", false] : null,
  ].filter(Boolean);
}

// Pairs of a name and a figure.
class List {
  #root;
  #rows = new Map();

  constructor(id) {
    this.#root = document.getElementById(id);
  }

  show(rows) {
    keep(this.#rows, new Set(rows.map(([name]) => name)), (name) => this.#row(name));
    rows.forEach(([name, value, full], place) => {
      const row = this.#rows.get(name), there = this.#root.children[place] ?? null;
      put(row.value, value);
      row.element.classList.toggle("full", full);
      // What stands where it should is not touched.
      if (there !== row.element) this.#root.insertBefore(row.element, there);
    });
  }

  #row(name) {
    const element = make("div"), value = make("dd");
    element.append(make("dt", "", name), value);
    return { element, value };
  }
}
