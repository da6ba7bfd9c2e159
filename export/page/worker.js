// The model, in a thread of its own, so that the page never waits for it.

import * as ort from "./ort.wasm.min.mjs";
import { Bundle } from "./bundle.mjs";

ort.env.wasm.numThreads = 1; // more need response headers that static hosts seldom send
ort.env.logLevel = "error";

async function fetched(path) {
  const response = await fetch(new URL(path, import.meta.url));
  if (!response.ok) throw new Error(`${path}: HTTP ${response.status}`);
  return response;
}

const read = async (path) => new Uint8Array(await (await fetched(`bundle/${path}`)).arrayBuffer());

const page = fetched("page.json").then((response) => response.json());

async function open() {
  const { precision } = await page;
  return await Bundle.open(ort, read, precision);
}

const opened = open();

opened.then(
  async (bundle) => {
    const { name, digest, decoding, limits } = bundle.manifest;
    const version = digest.slice(0, 12);
    const [beamSize, maxBeamSize] = [decoding.beam_size, limits.max_beam_size];
    const { precision } = bundle;
    const { description, examples } = await page;
    postMessage({ ready: { name, version, precision, beamSize, maxBeamSize, description, examples } });
  },
  (error) => postMessage({ failed: error.message }),
);

onmessage = async ({ data: { number, text, beamSize } }) => {
  const bundle = await opened;
  const begin = performance.now();
  try {
    const source = bundle.manifest.source.tokens_only ? text.trim().split(/\s+/) : text;
    const answer = await bundle.generate(source, { beamSize, numHypotheses: Math.min(beamSize, 4, bundle.manifest.limits.max_num_hypotheses) });
    postMessage({ number, answer, milliseconds: performance.now() - begin });
  } catch (error) {
    postMessage({ number, problem: error.message });
  }
};
