// Quantities as texts, and elements.

const scaled = (value, units, base = 1000) => {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  const digits = value === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toFixed(digits) + "\u00a0" + units[index];
};

export const bytes = (count) => scaled(count, ["B", "kB", "MB", "GB", "TB"]);
export const rate = (bps) => scaled(bps, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]);
export const percent = (part) => (part >= 0.1 ? (100 * part).toFixed(0) : (100 * part).toFixed(1)) + "%";

export function span(seconds) {
  if (seconds >= 7200) return (seconds / 3600).toFixed(1) + "\u00a0h";
  if (seconds >= 600) return (seconds / 60).toFixed(1) + "\u00a0min";
  return seconds.toFixed(seconds >= 100 ? 0 : 1) + "\u00a0s";
}

// Ticks are round: no more digits than they need.
export const short = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

export function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// The largest of many numbers; a spread would be as many arguments.
export const most = (values) => values.reduce((most, value) => Math.max(most, value), 0);
