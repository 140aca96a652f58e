// The bundle node of this host, if one runs: what is in its store, and which peers it reaches.

import { bytes, count, percent, put } from "./format.js";

const at = (id) => document.getElementById(id);

// What the bundles wait for; what nothing waits for is left out.
function waiting({ queued, parked, deliverable }) {
  const all = [[queued, "for a session"], [parked, "for a contact or a route"], [deliverable, "to be delivered here"]];
  return all.filter(([number]) => number > 0).map(([number, what]) => `${count(number)} ${what}`).join(", ");
}

export function showNode(node) {
  at("node").hidden = !node;
  if (!node) return;
  put(at("node-id"), node.node);
  const what = waiting(node);
  put(at("node-bundles"), count(node.bundles) + (what ? `: ${what}` : ""));
  const used = node.quota_bytes > 0 ? ` (${percent(node.payload_bytes / node.quota_bytes)})` : "";
  put(at("node-store"), `${bytes(node.payload_bytes)} of ${bytes(node.quota_bytes)}${used}`);
  put(at("node-peers"), `${count(node.peers_connected)} of ${count(node.peers)}`);
  at("node-error-row").hidden = !node.last_error;
  put(at("node-error"), node.last_error ?? "");
}
