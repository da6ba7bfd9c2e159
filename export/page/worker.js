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

// Three sources among the golden examples, as one would type them.
async function examples(bundle) {
  const golden = new TextDecoder().decode(await read("golden.jsonl"));
  const sources = golden.trim().split("\n").map((line) => JSON.parse(line).source_tokens);
  const distinct = [...new Map(sources.map((tokens) => [tokens.join(" "), tokens])).values()];
  const chosen = distinct.sort((a, b) => a.length - b.length).slice(0, 3 * Math.ceil(distinct.length / 6));
  return [0, 1, 2].flatMap((third) => chosen.slice(Math.floor((third * chosen.length) / 3)).slice(0, 1))
    .map((tokens) => bundle.source.textOf(bundle.source.idsOfTokens(tokens)));
}

async function open() {
  const { precision } = await (await fetched("page.json")).json();
  return await Bundle.open(ort, read, precision);
}

const opened = open();

opened.then(
  async (bundle) => {
    const { name, digest, decoding, limits } = bundle.manifest;
    const version = digest.slice(0, 12);
    const [beamSize, maxBeamSize] = [decoding.beam_size, limits.max_beam_size];
    const { precision } = bundle;
    postMessage({ ready: { name, version, precision, beamSize, maxBeamSize, examples: await examples(bundle) } });
  },
  (error) => postMessage({ failed: error.message }),
);

onmessage = async ({ data: { number, text, beamSize } }) => {
  const bundle = await opened;
  const begin = performance.now();
  try {
    const answer = await bundle.generate(text, { beamSize, numHypotheses: Math.min(beamSize, 4) });
    postMessage({ number, answer, milliseconds: performance.now() - begin });
  } catch (error) {
    postMessage({ number, problem: error.message });
  }
};
