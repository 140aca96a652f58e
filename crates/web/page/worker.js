// Runs scenarios beside the page, which stays responsive.

const decoder = new TextDecoder();
let wasm;

const imports = { page: { progress: (part) => postMessage({ progress: part }) } };
const output = () => decoder.decode(new Uint8Array(wasm.memory.buffer, wasm.output(), wasm.output_length()));

onmessage = async ({ data }) => {
  if (data.module) {
    wasm = (await WebAssembly.instantiate(data.module, imports)).exports;
    postMessage({ ready: true });
    return;
  }
  const bytes = new TextEncoder().encode(data.text);
  const address = wasm.input(bytes.length);
  new Uint8Array(wasm.memory.buffer, address, bytes.length).set(bytes);
  try {
    const isError = wasm.run(BigInt(data.seed));
    postMessage(isError ? { error: output() } : { document: output() });
  } catch (trap) {
    // A panic has left its message; a lack of memory has not.
    postMessage({ broken: output() || String(trap) });
  }
};
