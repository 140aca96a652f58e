// The simulator: one run at a time, in a worker.

export class Stopped extends Error {}

export class Simulator {
  #module;
  #source;
  #worker = null;
  #fail = null;

  constructor() {
    this.#source = URL.createObjectURL(new Blob([content("worker")], { type: "text/javascript" }));
    this.#module = unpack(content("simulator")).then((bytes) => WebAssembly.compile(bytes));
  }

  // The document of a run. A run that is under way is stopped.
  async run(text, seed, progress = () => {}) {
    this.#fail?.(new Stopped());
    const mine = new Promise((resolve, reject) => {
      this.#fail = (error) => {
        this.#end();
        reject(error);
      };
      this.#start(text, seed, { resolve, reject, progress }).catch(reject);
    });
    return mine;
  }

  async #start(text, seed, { resolve, reject, progress }) {
    const fail = this.#fail;
    const module = await this.#module;
    if (fail !== this.#fail) return;
    const isNew = !this.#worker;
    const worker = this.#worker ??= new Worker(this.#source);
    const done = (settle, value) => {
      this.#fail = null;
      settle(value);
    };
    worker.onerror = (event) => fail(new Error(event.message || "the worker cannot start"));
    worker.onmessage = ({ data }) => {
      if (data.ready) worker.postMessage({ text, seed: String(seed) });
      else if ("progress" in data) progress(data.progress);
      else if ("document" in data) done(resolve, data.document);
      else if ("error" in data) done(reject, new Error(data.error));
      else {
        this.#end();
        done(reject, new Error("the simulator has failed, please report this scenario: " + data.broken));
      }
    };
    worker.postMessage(isNew ? { module } : { text, seed: String(seed) });
  }

  #end() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#fail = null;
  }
}

const content = (id) => document.getElementById(id).textContent.trim();

// Base64 of gzip.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
