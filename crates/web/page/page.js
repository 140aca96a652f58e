// The page: settings make a scenario, the simulator runs it, view and player show it.

import { make } from "./format.js";
import { Player } from "./player.js";
import { initial, scenario, SETTINGS } from "./settings.js";
import { Simulator, Stopped } from "./simulator.js";
import { View } from "./view.js";

const element = (id) => document.getElementById(id);
const simulator = new Simulator();
const view = new View();
const player = new Player(view);
const text = element("scenario");
const settings = initial();
let seed = 1;
let isEdited = false;
let waiting = 0;

function state(kind, words) {
  element("state").dataset.state = kind;
  element("state").textContent = words;
}

async function run() {
  element("notice").hidden = true;
  element("command").textContent = `bentpipe sim scenario.toml --seed ${seed} --json`;
  state("waiting", "running");
  try {
    const progress = (part) => state("waiting", `running, ${Math.floor(100 * part)}%`);
    const run = JSON.parse(await simulator.run(text.value, seed, progress));
    view.show(run);
    player.start();
    const sweep = run.points > 1 ? `; the first of ${run.points} points of its sweep` : "";
    state("ready", view.summary() + sweep);
  } catch (error) {
    if (error instanceof Stopped) return;
    player.pause();
    state("failed", "not run");
    // Beside what is wrong.
    const notice = element("notice");
    if (isEdited) text.after(notice);
    else document.querySelector("main").before(notice);
    notice.textContent = error.message;
    notice.hidden = false;
    select(error.message);
  }
}

// Selects the line that an error names, if it is being edited.
function select(message) {
  const line = Number(/^scenario\.toml:(\d+):/.exec(message)?.[1]);
  if (!line || !isEdited) return;
  const lines = text.value.split("\n");
  const before = lines.slice(0, line - 1).reduce((sum, line) => sum + line.length + 1, 0);
  text.focus();
  text.setSelectionRange(before, before + (lines[line - 1]?.length ?? 0));
  text.scrollTop = (text.scrollHeight * (line - 1)) / lines.length - text.clientHeight / 3;
}

// While the text is another than that of the sliders, they are off: they would overwrite it.
function edited(is) {
  isEdited = is;
  element("discard").hidden = element("off").hidden = !is;
  for (const { input } of controls) input.disabled = is;
}

// Runs when the sliders rest.
function later() {
  edited(false);
  text.value = scenario(settings);
  clearTimeout(waiting);
  waiting = setTimeout(run, 120);
}

function slider(setting) {
  const control = make("div", "control");
  const label = make("label", "", setting.label);
  const output = make("output");
  const range = { type: "range", min: 0, max: setting.options.length - 1, step: 1 };
  const input = Object.assign(make("input"), range);
  input.id = label.htmlFor = output.htmlFor = "set-" + setting.name;
  const show = () => {
    const option = setting.options.find(({ value }) => value === settings[setting.name]);
    input.value = setting.options.indexOf(option);
    output.textContent = option.text;
    input.setAttribute("aria-valuetext", option.text);
  };
  input.addEventListener("input", () => {
    settings[setting.name] = setting.options[input.value].value;
    show();
    later();
  });
  control.append(label, output, input);
  return { control, input, show };
}

function menu(setting) {
  const control = make("div", "control");
  const label = make("label", "", setting.label);
  const input = make("select");
  input.id = label.htmlFor = "set-" + setting.name;
  const option = ({ value, text }) => Object.assign(make("option", "", text), { value });
  input.append(...setting.options.map(option));
  input.addEventListener("change", () => {
    settings[setting.name] = input.value;
    later();
  });
  control.append(label, input);
  return { control, input, show: () => (input.value = settings[setting.name]) };
}

function seedField() {
  const control = make("div", "control");
  const label = make("label", "", "Seed of the losses");
  const input = Object.assign(make("input"), { type: "number", min: 0, step: 1, id: "set-seed" });
  label.htmlFor = input.id;
  input.addEventListener("change", () => {
    // Whole and not so large that the script would round it.
    seed = Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, Math.floor(Number(input.value)) || 0));
    input.value = seed;
    clearTimeout(waiting);
    waiting = setTimeout(run, 120);
  });
  control.append(label, input);
  return { control, show: () => (input.value = seed) };
}

const groups = new Map();
const controls = SETTINGS.map((setting) => {
  const control = setting.slider ? slider(setting) : menu(setting);
  if (!groups.has(setting.group)) {
    const group = make("fieldset");
    group.append(make("legend", "", setting.group));
    groups.set(setting.group, group);
    element("controls").append(group);
  }
  groups.get(setting.group).append(control.control);
  return control;
});
const seeds = seedField();
groups.get("Download").append(seeds.control);
const showAll = () => [...controls, seeds].forEach(({ show }) => show());

element("settings").addEventListener("submit", (event) => event.preventDefault());
element("reset").addEventListener("click", () => {
  Object.assign(settings, initial());
  seed = 1;
  showAll();
  later();
});
text.addEventListener("input", () => edited(true));
element("run").addEventListener("click", run);
element("discard").addEventListener("click", later);
element("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(text.value);
  } catch {
    // A page that is a file may not be allowed to: then its owner copies what is selected.
    text.focus();
    text.select();
    document.execCommand("copy");
  }
  element("copy").textContent = "Copied";
  setTimeout(() => (element("copy").textContent = "Copy"), 1500);
});

// For other scripts, and tests.
window.bentpipe = { run: (text, seed) => simulator.run(text, seed), scenario, initial, SETTINGS };

showAll();
later();
