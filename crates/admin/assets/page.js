// The live page of bentpipe. It asks /status and /history once a second, one question at a time, and shows the answers.
// Names and addresses are data: they get into the document as texts, never as markup.

import { Charts, Lanes } from "./charts.js";
import { Flows } from "./flows.js";
import { bytes, clock, count, moment, NOTHING, parts, put, rate, span } from "./format.js";
import { History } from "./history.js";
import { Legs, total } from "./legs.js";
import { showNode } from "./node.js";
import { notSplit, Policy } from "./policy.js";

const PERIOD_MS = 1000;
const PATIENCE_MS = 8000;
const LONGEST_WAIT_MS = 15000;
const BYPASS = "The bypass is on: new connections pass unsplit. To end it: bentpipe bypass off";
const UNREADY = "New connections pass unsplit. The daemon’s log says why.";

const at = (id) => document.getElementById(id);
const histories = { 1: new History(1), 60: new History(60) };
const charts = new Charts(), lanes = new Lanes(), legs = new Legs(), policy = new Policy();
const flows = new Flows(poll);

let step = 1;
let pid = null, program = null;
let heard = null; // when the daemon last answered, by this browser's steady clock and by its time of day
let problem = null; // why it did not, the last time
let failures = 0;
let paused = false;
let asking = false, askAgain = false, timer = 0;
let last = null; // its last status

class Unheard extends Error {}
class Refused extends Unheard {}

async function ask(path) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  } catch (error) {
    const slow = error.name === "TimeoutError";
    throw new Unheard(slow ? `no answer within ${PATIENCE_MS / 1000} s` : "no connection", { cause: error });
  }
  if (response.status === 401 || response.status === 403) {
    throw new Refused("the daemon asks for its token: open this page with ?token= and what is in its token file");
  }
  if (!response.ok) throw new Unheard("the daemon answered " + response.status);
  try {
    return await response.json();
  } catch (error) {
    throw new Unheard("the answer broke off", { cause: error });
  }
}

// Asks once, unless nobody looks. Questions never overlap.
async function poll() {
  if (asking) {
    askAgain = true;
    return;
  }
  clearTimeout(timer);
  if (document.hidden || paused) return;
  asking = true;
  askAgain = false;
  const began = performance.now();
  try {
    await askBoth();
    failures = 0;
    problem = null;
  } catch (error) {
    if (!(error instanceof Unheard)) console.error(error);
    failures += 1;
    problem = error;
  }
  asking = false;
  showState();
  timer = setTimeout(poll, askAgain ? 0 : waitAfter(performance.now() - began));
}

// Who is slow, here or there, is asked less often; who does not answer, less and less.
function waitAfter(took) {
  if (failures) return Math.min(LONGEST_WAIT_MS, PERIOD_MS * 2 ** (failures - 1));
  return Math.max(PERIOD_MS - took, 2 * took, 100);
}

async function askBoth() {
  const wanted = flows.wanted;
  const status = await ask("status?flows=" + wanted);
  // Another program may say other things: it has its own page.
  if (program !== null && program !== status.program) location.reload();
  program = status.program;
  // After an upgrade the successor's history is asked for from its beginning.
  if (pid !== status.pid) Object.values(histories).forEach((history) => history.clear());
  pid = status.pid;
  last = status;
  heard = { steady: performance.now(), clock: Date.now() / 1000 };
  const satellites = new Set(status.legs.filter((leg) => leg.interface !== null).map((leg) => leg.name));
  showFigures(status, satellites);
  legs.show(status.legs);
  policy.show(status);
  showNode(status.bundle_node);
  showZone(status);
  flows.update(status.flows, status.totals, satellites, wanted);
  const history = histories[step];
  const answer = await ask(`history?step=${history.step}&since=${history.since}`);
  if (answer.step === history.step) history.add(answer);
  showHistory();
}

function showHistory() {
  const history = histories[step];
  if (!history.now) return;
  charts.show(history);
  lanes.show(history);
  if (last) showOutage(last.legs, history);
}

function big(id, [number, unit]) {
  const element = at(id);
  if (element.dataset.shown === number + unit) return;
  element.dataset.shown = number + unit;
  const small = document.createElement("span");
  small.className = "unit";
  small.textContent = unit ? "\u00a0" + unit : "";
  element.replaceChildren(number, small);
}

function showFigures(status, satellites) {
  const over = status.legs.filter((leg) => satellites.has(leg.name));
  const sum = (figure) => over.reduce((total, leg) => total + leg[figure], 0);
  put(at("version"), status.version);
  put(at("host"), status.host);
  const upgrades = `, ${count(status.upgrades)} ${status.upgrades === 1 ? "upgrade" : "upgrades"}`;
  put(at("uptime"), span(status.uptime_s) + (status.upgrades ? upgrades : ""));
  big("sent", parts(sum("sent_bps"), "bit/s"));
  big("received", parts(sum("received_bps"), "bit/s"));
  put(at("sent-total"), bytes(sum("sent_bytes")) + " in all");
  put(at("received-total"), bytes(sum("received_bytes")) + " in all");
  big("flow-count", [count(status.totals.flows_open), ""]);
  put(at("flow-detail"), `${count(sum("active"))} active, ${count(status.totals.connecting)} connecting`);
  showUnsplit(over, status.policy);
  showGain(status.gain);
}

function showUnsplit(over, policy) {
  const seen = over.map((leg) => leg.forwarded).filter(Boolean);
  const sum = (figure) => seen.reduce((all, forwarded) => all + figure(forwarded), 0);
  const now = sum((forwarded) => forwarded.sent_bps + forwarded.received_bps);
  const split = over.reduce((all, leg) => all + leg.sent_bps + leg.received_bps, 0);
  big("unsplit-rate", seen.length ? parts(now, "bit/s") : [NOTHING, ""]);
  const part = now + split > 0 ? `${Math.round((100 * now) / (now + split))}\u00a0% of all, ` : "";
  const moved = bytes(sum((forwarded) => total(forwarded.sent_bytes) + total(forwarded.received_bytes)));
  put(at("unsplit-detail"), `${part}${moved} and ${count(notSplit(policy))} connections so far`);
}

// Whose time of day the page shows, and the gateway's where that is another one.
function showZone(status) {
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const there = status.time_zone;
  if (!there || there === here) return put(at("zone"), `Times of ${here}` + (there ? ", as at the gateway." : ", this browser’s zone."));
  let time = "";
  try {
    const format = { timeZone: there, hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    time = `: it is ${new Date().toLocaleTimeString("en-GB", format)} there`;
  } catch {
    // This browser does not know the zone.
  }
  put(at("zone"), `Times of ${here}, this browser’s zone. The gateway is in ${there}${time}.`);
}

// Why there is no gain, as bentpipe status says it.
const NO_GAIN = {
  nothing_sent: "not measurable: nothing is being sent to the satellite",
  too_little: "not measurable yet: too little has been sent to the satellite",
  outage: "not measurable: the satellite leg is out, or was until a few seconds ago",
};

function showGain(gain) {
  if (gain.ratio === null) {
    big("gain", [NOTHING, ""]);
    return put(at("gain-detail"), NO_GAIN[gain.state] ?? "not measurable");
  }
  big("gain", ["×" + gain.ratio.toFixed(gain.ratio < 9.95 ? 1 : 0), ""]);
  const start = gain.start_up >= 0.05 ? `; ${Math.round(100 * gain.start_up)}\u00a0% of that time slow start` : "";
  put(at("gain-detail"), `${rate(gain.actual_bps)} instead of ≈${rate(gain.end_to_end_bps)} in 30\u00a0s${start}`);
}

function showOutage(all, history) {
  const gone = all.filter((leg) => leg.outage_s !== null).sort((a, b) => b.outage_s - a.outage_s);
  at("outage-figure").classList.toggle("gone", gone.length > 0);
  if (gone.length) {
    big("outage", [span(gone[0].outage_s), ""]);
    put(at("outage-detail"), "nothing heard on " + gone.map((leg) => leg.name).join(", "));
    return;
  }
  const before = history.outages[history.outages.length - 1];
  big("outage", ["none", ""]);
  if (!before) return put(at("outage-detail"), "none so far");
  const length = span((before.ended ?? history.now) - before.began);
  put(at("outage-detail"), `last ${moment(before.began, history.now)}, ${length}, ${before.leg}`);
}

// What the daemon is up to, and what that means.
function situation() {
  if (problem) return ["lost", lostName(), lostNotice()];
  if (paused) return ["paused", "paused", `Paused: what you see is of ${heard ? clock(heard.clock) : "before"}.`];
  if (!last) return ["waiting", "connecting", ""];
  if (last.draining) {
    const left = last.draining.left_s;
    const time = left === null ? "may take their time" : `are reset in ${span(left)}`;
    const flows = count(last.totals.flows_open);
    return ["draining", "draining", `New connections pass unsplit. The ${flows} flows that are left ${time}.`];
  }
  if (last.bypass) return ["bypass", "bypass", BYPASS];
  return last.ready ? ["ready", "ready", ""] : ["unready", "not ready", last.not_ready ?? UNREADY];
}

function lostName() {
  if (problem instanceof Refused) return "no access";
  return problem instanceof Unheard ? "connection lost" : "page failed";
}

function lostNotice() {
  const reason = problem.message;
  if (!(problem instanceof Unheard)) return `This page has failed and shows what it can: ${reason}. Load it again.`;
  if (!heard) return `No answer from the daemon yet: ${reason}.`;
  const ago = span((performance.now() - heard.steady) / 1000);
  const when = `last heard ${ago} ago, at ${clock(heard.clock)}`;
  return `No answer from the daemon (${reason}): ${when}. What you see is from then.`;
}

function showState() {
  const [state, name, notice] = situation();
  at("state").dataset.state = state;
  // Set only when it changes, so that it is read out once.
  put(at("state"), name);
  at("notice").hidden = !notice;
  put(at("notice"), notice);
  const mark = { lost: "✕ ", unready: "▲ ", draining: "◐ ", bypass: "↷ " }[state] ?? "";
  const host = last?.host ? last.host + " · " : "";
  document.title = mark + "bentpipe · " + host + (state === "ready" ? at("sent").textContent : name);
}

function show(wanted) {
  step = wanted;
  for (const other of [1, 60]) at("step-" + other).setAttribute("aria-pressed", String(other === wanted));
  showHistory();
  poll();
}

function pause() {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  put(at("pause"), paused ? "Go on" : "Pause");
  showState();
  poll();
}

// A token has done its work when the page is here, and does not belong into bookmarks or screenshots.
function hideToken() {
  const address = new URL(location.href);
  if (!address.searchParams.has("token")) return;
  address.searchParams.delete("token");
  window.history.replaceState(null, "", address);
}

hideToken();
at("step-1").addEventListener("click", () => show(1));
at("step-60").addEventListener("click", () => show(60));
at("pause").addEventListener("click", pause);
document.addEventListener("visibilitychange", poll);
setInterval(() => problem && showState(), 1000);
poll();
