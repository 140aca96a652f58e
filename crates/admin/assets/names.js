// Names in the place of addresses, where a person asks for them: the gateway looks them up.

const MOST = 100;
const AGAIN_MS = 3000;

// The address without its port: 10.0.0.1:80, [2001:db8::1]:80.
const host = (end) => end.replace(/:\d+$/, "").replace(/^\[|\]$/g, "");
const port = (end) => end.slice(end.lastIndexOf(":"));

export class Names {
  #wanted = false;
  #known = new Map();
  #asked = 0;
  #changed;

  constructor(button, changed) {
    this.#changed = changed;
    button.addEventListener("click", () => {
      this.#wanted = !this.#wanted;
      button.setAttribute("aria-pressed", String(this.#wanted));
      changed();
    });
  }

  // What to show for an end of a flow.
  of(end) {
    const name = this.#wanted && this.#known.get(host(end));
    return name ? name + port(end) : end;
  }

  // Asks for the names of these ends, unless nobody wants them or all are known.
  async ask(ends) {
    if (!this.#wanted || performance.now() - this.#asked < AGAIN_MS) return;
    const unknown = [...new Set(ends.map(host))].filter((address) => !this.#known.has(address)).slice(0, MOST);
    if (!unknown.length) return;
    this.#asked = performance.now();
    try {
      const question = "names?addresses=" + encodeURIComponent(unknown.join(","));
      const response = await fetch(question, { cache: "no-store", headers: { "Bentpipe-Names": "1" } });
      if (!response.ok) return;
      for (const [address, name] of Object.entries(await response.json())) this.#known.set(address, name);
      this.#changed();
    } catch {
      // Without an answer the addresses stay; the page says elsewhere that the daemon does not answer.
    }
  }
}
