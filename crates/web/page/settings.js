// The settings that have sliders and menus, and the scenario that they make.

const MBIT = 1e6;
const list = (values, write) => values.map((value) => ({ value, text: write(value) }));
const number = (value) => String(Number(value.toPrecision(6)));
const rate = (mbit) => mbit < 1 ? `${number(mbit * 1000)} kbit/s` : `${number(mbit)} Mbit/s`;
const percent = (part) => `${number(part * 100)}%`;
const ORBITS = new Map([[40, ", LEO"], [150, ", MEO"], [600, ", GEO"]]);

const CONTROLS = [
  { name: "explicit", text: "explicit rates (bentpipe)" },
  { name: "hybla", text: "Hybla (bentpipe)" },
  { name: "bbr", text: "BBR" },
  { name: "bbr3", text: "BBR version 3" },
  { name: "cubic", text: "CUBIC" },
  { name: "newreno", text: "Reno (NewReno)" },
];
const choices = (controls) => controls.map(({ name, text }) => ({ value: name, text }));

// Each has its values in order; `initial` is one of them.
export const SETTINGS = [
  { group: "Satellite link", name: "rate", label: "Rate", slider: true, initial: 10,
    options: list([0.128, 0.256, 0.512, 1, 2, 5, 10, 20, 50, 100, 200], rate) },
  { group: "Satellite link", name: "rtt", label: "Round trip (RTT)", slider: true, initial: 600,
    options: list([20, 40, 80, 150, 300, 600, 1200, 2500, 5000],
      (ms) => `${ms} ms${ORBITS.get(ms) ?? ""}`) },
  { group: "Satellite link", name: "per", label: "Packet error rate (PER)", slider: true, initial: 0.01,
    options: list([0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.1], percent) },
  { group: "Satellite link", name: "queue", label: "Queue", slider: true, initial: 1,
    options: list([0.1, 0.25, 0.5, 1, 2, 4], (bdps) => `${bdps} × bandwidth-delay product`) },
  { group: "Outage", name: "start", label: "Start", slider: true, initial: 5,
    options: list([0, 1, 2, 3, 5, 8, 10, 15, 20, 30, 60, 120], (seconds) => `${seconds} s`) },
  { group: "Outage", name: "length", label: "Length", slider: true, initial: 0,
    options: list([0, 0.1, 0.5, 1, 2, 5, 10, 20, 60, 300],
      (seconds) => seconds ? `${seconds} s` : "no outage") },
  { group: "Download", name: "size", label: "Size", slider: true, initial: 10,
    options: list([0.1, 0.3, 1, 3, 10, 30, 100, 300], (mb) => `${mb} MB`) },
  { group: "TCP", name: "paths", label: "Paths", initial: "both", options: [
    { value: "both", text: "both, one beside the other" },
    { value: "split", text: "split at the gateway" },
    { value: "end-to-end", text: "end to end" },
  ] },
  { group: "TCP", name: "leg", label: "Split: on the satellite", initial: "explicit",
    options: choices(CONTROLS) },
  { group: "TCP", name: "ends", label: "End to end", initial: "cubic", options: choices(CONTROLS.slice(1)) },
];

export const initial = () => Object.fromEntries(SETTINGS.map(({ name, initial }) => [name, initial]));

// Two ways that share nothing, so that neither download is in the other's way.
export function scenario(settings) {
  const wants = (path) => settings.paths === "both" || settings.paths === path;
  const parts = [head(settings)];
  if (wants("split")) parts.push(links(settings, "", settings.leg === "explicit"));
  if (wants("end-to-end")) parts.push(links(settings, "2", false));
  if (wants("split")) parts.push(tcp("space", settings.leg));
  if (wants("end-to-end")) parts.push(tcp("ends", settings.ends));
  const splitter = 'split = [{ at = "gateway", tcp = "space" }]\n';
  if (wants("split")) parts.push(flow("split", "", settings, "linux-stock", splitter));
  if (wants("end-to-end")) parts.push(flow("end-to-end", "2", settings, "ends", ""));
  return parts.join("\n");
}

function head({ size }) {
  return `title = "A download of ${size} MB over a satellite"\nduration = "15m"\nsample_interval = "50ms"\n`;
}

function links(settings, suffix, explicit) {
  const { rate: mbit, rtt, per, queue, start, length } = settings;
  const bytes = Math.max(15000, Math.round((queue * mbit * MBIT * rtt) / 8000));
  const outage = length ? `outages = [{ start = "${start}s", duration = "${length}s" }]\n` : "";
  return `[[link]]
name = "internet${suffix}"
between = ["server${suffix}", "gateway${suffix}"]
rate = "1Gbit/s"
delay = "5ms"

[[link]]
name = "satellite${suffix}"
between = ["gateway${suffix}", "client${suffix}"]
rate = "${number(mbit * 1000)}kbit/s"
delay = "${number(rtt / 2)}ms"
per = "${percent(per)}"
queue = ${bytes}
${outage}${explicit ? 'explicit = { at = "gateway" }\n' : ""}`;
}

function tcp(name, congestion) {
  return `[tcp.${name}]\nbase = "linux-stock"\ncongestion = "${congestion}"\n`;
}

// A download: the client opens the connection.
function flow(name, suffix, { size }, tcp, split) {
  return `[[flow]]
name = "${name}"
from = "server${suffix}"
to = "client${suffix}"
bytes = "${Math.round(size * 1000)}kB"
opened_by = "destination"
tcp = "${tcp}"
${split}`;
}
