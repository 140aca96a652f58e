// Figures as people read them: three digits, a unit, and never a line break between the two.

const SPACE = "\u00a0";
export const NOTHING = "–";

// A number and its unit, so that they can be set in different sizes.
export function parts(value, unit, base = 1) {
  if (value === null || value === undefined || !Number.isFinite(value)) return [NOTHING, ""];
  const prefixes = ["", "k", "M", "G", "T"];
  let scaled = value / base, place = 0;
  while (scaled >= 999.5 && place < prefixes.length - 1) {
    scaled /= 1000;
    place += 1;
  }
  const digits = place === 0 || scaled >= 99.95 ? 0 : scaled >= 9.995 ? 1 : 2;
  return [scaled.toFixed(digits), prefixes[place] + unit];
}

const joined = ([number, unit]) => (unit ? number + SPACE + unit : number);

export const rate = (bps) => joined(parts(bps, "bit/s"));
export const bytes = (count) => joined(parts(count, "B"));
export const count = (value) => (value === null || value === undefined ? NOTHING : value.toLocaleString("en-GB"));
export const percent = (share) =>
  share === null || share === undefined ? NOTHING : (100 * share).toFixed(share >= 0.1 ? 0 : 2) + SPACE + "%";

// A round trip or a timeout.
export function delay(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds >= 9.9995) return seconds.toFixed(1) + SPACE + "s";
  const milliseconds = seconds * 1000;
  if (milliseconds > 0 && milliseconds < 0.1) return "<0.1" + SPACE + "ms";
  return milliseconds.toFixed(milliseconds >= 9.95 ? 0 : 1) + SPACE + "ms";
}

// A length of time, in its two largest units.
export function span(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const whole = Math.max(0, Math.round(seconds));
  const first = units.findIndex(([length]) => whole >= length);
  if (first < 0) return "0" + SPACE + "s";
  const [length, unit] = units[first];
  const major = Math.floor(whole / length) + SPACE + unit;
  if (first === units.length - 1) return major;
  const [smaller, smallerUnit] = units[first + 1];
  const minor = Math.floor((whole % length) / smaller);
  return minor ? major + " " + minor + SPACE + smallerUnit : major;
}

const two = (number) => String(number).padStart(2, "0");

// The time of day where the browser is.
export function clock(unix, withSeconds = true) {
  const date = new Date(unix * 1000);
  return two(date.getHours()) + ":" + two(date.getMinutes()) + (withSeconds ? ":" + two(date.getSeconds()) : "");
}

// The same with the day, if that is not the day of `now`.
export function moment(unix, now) {
  const date = new Date(unix * 1000);
  const today = date.toDateString() === new Date(now * 1000).toDateString();
  return (today ? "" : two(date.getMonth() + 1) + "-" + two(date.getDate()) + " ") + clock(unix);
}

// Sets a text only where it is another one: an element that is not touched is not laid out anew.
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Makes a map of shown things one of exactly these keys: what is gone leaves the document, what is new is made.
export function keep(shown, keys, create) {
  for (const [key, { element }] of shown) {
    if (keys.has(key)) continue;
    element.remove();
    shown.delete(key);
  }
  for (const key of keys) if (!shown.has(key)) shown.set(key, create(key));
}

export function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
