// Decodes bundles' golden examples, in each of their precisions: node check.mjs BUNDLE... ; exit status 1 if one differs.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import ort from "onnxruntime-node";
import { Bundle } from "./bundle.mjs";
import { goldenDifferences } from "./golden.mjs";

const folders = process.argv.slice(2);
if (!folders.length) {
  console.error("usage: node check.mjs BUNDLE...");
  process.exit(2);
}
for (const folder of folders) {
  const read = (path) => readFile(join(folder, path));
  const { graphs } = JSON.parse(await read("manifest.json"));
  for (const precision of Object.keys(graphs)) {
    const bundle = await Bundle.open(ort, read, precision);
    const { differences, numCompared } = await goldenDifferences(bundle, String(await read("golden.jsonl")));
    const numEqual = numCompared - differences.length;
    console.log(`${bundle.manifest.name} ${precision}: ${numEqual} of ${numCompared} as expected`);
    for (const difference of differences) console.log(`  ${difference}`);
    if (differences.length) process.exitCode = 1;
  }
}
