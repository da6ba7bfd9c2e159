// Answers texts, a line each: node generate.mjs BUNDLE BEAM_SIZE TEXT...  prints hypotheses as JSON.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import ort from "onnxruntime-node";
import { Bundle } from "./bundle.mjs";

const [folder, beamSize, ...texts] = process.argv.slice(2);
if (!texts.length) {
  console.error("usage: node generate.mjs BUNDLE BEAM_SIZE TEXT...");
  process.exit(2);
}
const bundle = await Bundle.open(ort, (path) => readFile(join(folder, path)));
for (const text of texts) {
  const { hypotheses } = await bundle.generate(text, { beamSize: Number(beamSize), numHypotheses: Number(beamSize) });
  console.log(JSON.stringify(hypotheses.map(({ text, logProb, score }) => ({ text, logProb, score }))));
}
