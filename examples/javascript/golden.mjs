// The conformance test of a bundle's implementations: its golden examples.

/** Returns a line for each golden example of the bundle's precision that differs, and how many were compared. */
export async function goldenDifferences(bundle, golden) {
  const certificates = bundle.manifest.certificates.filter(({ precision }) => precision === bundle.precision);
  const tolerance = Math.max(...certificates.map((certificate) => certificate.score_tolerance));
  const examples = golden.trim().split("\n").map((line) => JSON.parse(line));
  const compared = examples.filter(({ precision }) => precision === bundle.precision);
  const differences = [];
  for (const example of compared) {
    const { hypotheses } = await bundle.generate(example.source_tokens, {
      beamSize: example.beam_size,
      numHypotheses: 1,
      lengthPenalty: example.length_penalty,
      lengthPenaltyOffset: example.length_penalty_offset ?? 5,
      maxLength: example.max_length,
      patience: 0,
    });
    const [best] = hypotheses;
    const expected = example.target_tokens.join(" ");
    const source = example.source_tokens.join(" ");
    if (best.tokens.join(" ") !== expected) differences.push(`${source}: ${best.tokens.join(" ")}, must be ${expected}`);
    else if (!(Math.abs(best.score - example.score) <= tolerance * Math.max(1, Math.abs(example.score)))) {
      differences.push(`${source}: score is ${best.score}, must be ${example.score}`);
    }
  }
  return { differences, numCompared: compared.length };
}
