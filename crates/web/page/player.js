// Plays the virtual time: at a speed, with pauses, from any moment.

import { span } from "./format.js";

const WHOLE_S = 6;
const PARTS = 1000;

export class Player {
  #button = document.getElementById("play");
  #speed = document.getElementById("speed");
  #slider = document.getElementById("time");
  #clock = document.getElementById("clock");
  #view;
  #time = 0;
  #before = null;
  #frame = 0;

  constructor(view) {
    this.#view = view;
    this.#button.addEventListener("click", () => (this.#frame ? this.pause() : this.#play()));
    this.#slider.addEventListener("input", () => {
      this.pause();
      this.#moveTo((this.#slider.value / PARTS) * view.end);
    });
    const charts = document.getElementById("charts");
    charts.addEventListener("keydown", (event) => {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!direction) return;
      event.preventDefault();
      this.pause();
      this.#moveTo(this.#time + (direction * view.end) / (event.shiftKey ? 20 : 200));
    });
    charts.addEventListener("pointerdown", (event) => {
      const box = charts.querySelector("svg[role=img]").getBoundingClientRect();
      this.pause();
      this.#moveTo(((event.clientX - box.left) / box.width) * view.end);
    });
  }

  // From the beginning; at once for those who want no motion.
  start() {
    this.pause();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.#moveTo(still || this.#speed.value === "once" ? this.#view.end : 0);
    if (this.#time < this.#view.end) this.#play();
  }

  pause() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#button.textContent = "Play";
  }

  #play() {
    if (this.#time >= this.#view.end) this.#moveTo(0);
    this.#before = null;
    this.#button.textContent = "Pause";
    const step = (now) => {
      const real = this.#before === null ? 0 : (now - this.#before) / 1000;
      this.#before = now;
      this.#moveTo(this.#time + real * this.#factor());
      if (this.#time >= this.#view.end) this.pause();
      else this.#frame = requestAnimationFrame(step);
    };
    this.#frame = requestAnimationFrame(step);
  }

  // Virtual seconds in a real one.
  #factor() {
    const chosen = this.#speed.value;
    if (chosen === "once") return Infinity;
    return chosen === "whole" ? this.#view.end / WHOLE_S : Number(chosen);
  }

  #moveTo(time) {
    const end = this.#view.end;
    this.#time = Number.isNaN(time) ? 0 : Math.min(end, Math.max(0, time));
    this.#slider.value = Math.round((this.#time / end) * PARTS);
    const text = `${span(this.#time)} of ${span(end)}`;
    this.#slider.setAttribute("aria-valuetext", text);
    this.#clock.textContent = text;
    this.#view.moveTo(this.#time);
  }
}
