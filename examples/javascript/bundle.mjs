// A bundle in JavaScript: greedy and beam search over its two ONNX graphs, in node and in browsers.
//
// The format is described in docs/bundle.md. Shapes: B sources (here 1), R rows (live hypotheses), S source positions,
// M queries per source, K candidates per row.

import { Tokenizer } from "@huggingface/tokenizers";

const NO_ID = -1n; // in forced_ids and banned_ids: nothing
// As in docs/bundle.md; JavaScript's \s is another set.
const WHITE_SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const OUTER_SPACE = new RegExp(`^${WHITE_SPACE}|${WHITE_SPACE}$`, "gu");
const INNER_SPACE = new RegExp(WHITE_SPACE, "gu");
const LEAST_POSSIBLE = -1e8; // PAD and BOS, which are never generated, have -1e9
const WIDTH_MULTIPLE = 8; // sources are padded to a multiple of this, so that sums round alike at any width

/** A side's tokenizer: texts to ids and back. */
class Side {
  constructor(description, { pad, unk, bos, eos }) {
    this.library = new Tokenizer(description, {});
    const vocabulary = description.model.vocab; // Unigram has pairs of symbol and score, other models a map to ids
    this.symbols = Array.isArray(vocabulary) ? vocabulary.map(([symbol]) => symbol) : [];
    if (!Array.isArray(vocabulary)) for (const [symbol, id] of Object.entries(vocabulary)) this.symbols[id] = symbol;
    for (const { id, content } of description.added_tokens) this.symbols[id] = content;
    this.ids = new Map(this.symbols.map((symbol, id) => [symbol, id]));
    this.hasDecoder = Boolean(description.decoder);
    this.unk = unk;
    this.neverInText = [pad, bos, eos];
  }

  // White space changes no answer: unless the tokenizer's own normalizer sees to that, it is collapsed here.
  idsOfText(text) {
    if (this.library.normalizer?.(" a\n") !== "a") {
      text = text.replace(OUTER_SPACE, "").replace(INNER_SPACE, " ");
    }
    const ids = this.idsOfTokens(this.library.encode(text, { add_special_tokens: false }).tokens);
    return ids.map((id) => (this.neverInText.includes(id) ? this.unk : id)); // a word that is written "</s>" is text
  }

  idsOfTokens(tokens) {
    return tokens.map((token) => this.ids.get(token) ?? this.unk);
  }

  tokensOf(ids) {
    return ids.map((id) => this.symbols[id]);
  }

  textOf(ids) {
    if (!this.hasDecoder || ids.length === 0) return this.tokensOf(ids).join(" ");
    return this.library.decode(ids, { skip_special_tokens: false, clean_up_tokenization_spaces: false });
  }
}

export class Bundle {
  /**
   * Opens a bundle.
   * @param ort onnxruntime-node or onnxruntime-web
   * @param read async (path) => Uint8Array: a file of the bundle, for instance "int8/encoder.onnx"
   * @param precision "fp32" or "int8"; the bundle's default on a CPU if it is left out
   */
  static async open(ort, read, precision) {
    const json = async (path) => JSON.parse(new TextDecoder().decode(await read(path)));
    const manifest = await json("manifest.json");
    if (manifest.format_version !== 1) throw new Error(`format_version is ${manifest.format_version}, must be 1`);
    precision ??= manifest.default_precision.cpu;
    const graphs = manifest.graphs[precision];
    if (!graphs) throw new Error(`precision is ${precision}, must be ${Object.keys(manifest.graphs).join(" or ")}`);
    const session = async (graph) => ort.InferenceSession.create(await read(graph.file));
    const bundle = new Bundle();
    Object.assign(bundle, { ort, manifest, precision, graphs });
    bundle.source = new Side(await json("source_tokenizer.json"), manifest.special_ids);
    bundle.target = new Side(await json("target_tokenizer.json"), manifest.special_ids);
    bundle.encoder = await session(graphs.encoder);
    bundle.decoderStep = await session(graphs.decoder_step);
    bundle.hasAttention = graphs.decoder_step.outputs.some((output) => output.name === "attention");
    return bundle;
  }

  /**
   * Answers a text, or a list of source tokens. Throws an error that names an option out of its range.
   * @returns hypotheses, best first: {tokens, text, score, logProb, tokenLogProbs, finishReason, attention}, and the
   *   source's tokens. `attention` has a row per entry of tokenLogProbs and a column per source token.
   */
  async generate(source, options = {}) {
    const { decoding, limits, special_ids, source: side } = this.manifest;
    const ids = typeof source === "string" ? this.source.idsOfText(source) : this.source.idsOfTokens(source);
    const length = ids.length; // without BOS and EOS
    if (length === 0) throw new Error("the source is empty");
    if (length > limits.max_source_tokens) {
      throw new Error(`the source has ${length} tokens, may have ${limits.max_source_tokens}`);
    }
    if (side.prepend_bos) ids.unshift(special_ids.bos);
    if (side.append_eos) ids.push(special_ids.eos);
    const sourceTokens = this.source.tokensOf(ids);
    const search = {
      beamSize: options.beamSize ?? decoding.beam_size,
      numHypotheses: options.numHypotheses ?? Math.min(decoding.num_hypotheses, options.beamSize ?? Infinity),
      lengthPenalty: options.lengthPenalty ?? decoding.length_penalty,
      lengthPenaltyOffset: options.lengthPenaltyOffset ?? decoding.length_penalty_offset ?? 5,
      maxLength: options.maxLength ?? defaultMaxLength(decoding, limits, length),
    };
    refuseOutOfRange("beamSize", search.beamSize, limits.max_beam_size);
    refuseOutOfRange("numHypotheses", search.numHypotheses, Math.min(search.beamSize, limits.max_num_hypotheses));
    refuseOutOfRange("maxLength", search.maxLength, limits.max_target_tokens);
    const hypotheses = await this.#search(ids, search);
    return { sourceTokens, hypotheses };
  }

  // Beam search; with a beam of 1 it is greedy. Of the best k continuations of all live hypotheses, those that are EOS
  // end a hypothesis; the best k others live on. The search is over when no live hypothesis can become one of the
  // `numHypotheses` best: its log-probability can only fall, so its score can't exceed the one at its maximum length.
  async #search(sourceIds, { beamSize, numHypotheses, lengthPenalty, lengthPenaltyOffset, maxLength }) {
    const { eos, start } = this.manifest.special_ids;
    const penalty = (length) => ((lengthPenaltyOffset + length) / (lengthPenaltyOffset + 1)) ** lengthPenalty;
    const wanted = Math.min(numHypotheses, beamSize);
    const ended = [];
    const end = (live, logProb, weights) => {
      const tokenLogProbs = logProb === null ? live.logProbs : [...live.logProbs, logProb];
      const sum = live.sum + (logProb ?? 0);
      ended.push({
        tokens: this.target.tokensOf(live.ids),
        text: this.target.textOf(live.ids),
        score: sum / penalty(tokenLogProbs.length),
        logProb: sum,
        tokenLogProbs,
        finishReason: logProb === null ? "LENGTH" : "EOS",
        attention: logProb === null ? live.attention : [...live.attention, weights],
      });
    };
    const best = () => bestTexts(ended).slice(0, wanted);

    let state = await this.#encode(sourceIds);
    let lives = [{ ids: [], logProbs: [], sum: 0, attention: [] }];
    for (;;) {
      const previous = lives.map((live) => live.ids.at(-1) ?? start);
      const numCandidates = Math.min(beamSize + 1, this.target.symbols.length);
      const { candidates, attention, next } = await this.#step(state, previous, numCandidates);
      const weightsOf = (row) => attention?.[row].slice(0, sourceIds.length) ?? [];
      if (lives[0].ids.length === maxLength) {
        lives.forEach((live, row) => {
          const [first] = candidates[row];
          if (first.id === eos) end(live, first.logProb, weightsOf(row));
          else end(live, null);
        });
        return best();
      }
      const pool = lives.flatMap((live, row) =>
        candidates[row].map(({ id, logProb }) => ({ row, id, logProb, sum: live.sum + logProb })),
      );
      pool.sort((a, b) => b.sum - a.sum); // stable: of equal sums, the lower row, then the row's own order
      for (const { row, id, logProb } of pool.slice(0, beamSize)) {
        if (id === eos) end(lives[row], logProb, weightsOf(row));
      }
      const chosen = pool.filter(({ id }) => id !== eos).slice(0, beamSize);
      const found = best();
      const bound = found.length < wanted ? -Infinity : found.at(-1).score;
      const greedyEnd = beamSize === 1 && ended.length > 0;
      if (greedyEnd || !chosen.length || chosen[0].sum / penalty(maxLength + 1) <= bound) return found;
      lives = chosen.map(({ row, id, logProb, sum }) => ({
        ids: [...lives[row].ids, id],
        logProbs: [...lives[row].logProbs, logProb],
        sum,
        attention: [...lives[row].attention, weightsOf(row)],
      }));
      state = this.#select(next, chosen.map(({ row }) => row));
    }
  }

  // The state after the encoder: every tensor that `graphs.state` names, by its name among the step's inputs.
  async #encode(sourceIds) {
    // An encoder that depends on padding gets none.
    const multiple = this.graphs.encode_alone ? 1 : WIDTH_MULTIPLE;
    const width = Math.ceil(sourceIds.length / multiple) * multiple;
    const padded = [...sourceIds, ...Array(width - sourceIds.length).fill(this.manifest.special_ids.pad)];
    return await this.encoder.run({
      source_ids: this.#int64(padded, [1, width]),
      source_lengths: this.#int64([sourceIds.length], [1]),
    });
  }

  async #step(state, previousIds, numCandidates) {
    const rows = previousIds.length;
    const feeds = {
      previous_ids: this.#int64(previousIds, [rows]),
      forced_ids: this.#int64(Array(rows).fill(NO_ID), [rows]),
      banned_ids: this.#int64([], [rows, 0]),
      num_candidates: this.#int64([numCandidates], [1]),
    };
    if (this.hasAttention) {
      // The rows of a source query its memory together; places without a row repeat the first one's query.
      const queries = Math.max(rows, this.graphs.min_queries);
      feeds.source_rows = this.#int64(Array.from({ length: queries }, (_, m) => (m < rows ? m : 0)), [1, queries]);
      feeds.row_slots = this.#int64(Array.from({ length: rows }, (_, row) => row), [rows]);
    }
    for (const { input } of this.graphs.state) feeds[input] = state[input];
    const outputs = await this.decoderStep.run(feeds);
    const ids = outputs.candidate_ids.data;
    const logProbs = outputs.candidate_log_probs.data;
    const candidates = previousIds.map((_, row) =>
      Array.from({ length: numCandidates }, (_, k) => ({
        id: Number(ids[row * numCandidates + k]),
        logProb: logProbs[row * numCandidates + k],
      })).filter(({ logProb }) => logProb > LEAST_POSSIBLE),
    );
    const attention = this.hasAttention && previousIds.map((_, row) => Array.from(rowOf(outputs.attention, row)));
    const next = { ...state };
    for (const { input, output } of this.graphs.state) if (output !== null) next[input] = outputs[output];
    return { candidates, attention: attention || null, next };
  }

  // The state of these rows, in this order; tensors of a source stay as they are.
  #select(state, rows) {
    const selected = { ...state };
    for (const { input, scope } of this.graphs.state) {
      if (scope !== "row") continue;
      const { type, data, dims } = state[input];
      const size = data.length / dims[0];
      const taken = new data.constructor(rows.length * size);
      rows.forEach((row, place) => taken.set(rowOf(state[input], row), place * size));
      selected[input] = new this.ort.Tensor(type, taken, [rows.length, ...dims.slice(1)]);
    }
    return selected;
  }

  #int64(values, dims) {
    return new this.ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
  }
}

function rowOf({ data, dims }, row) {
  const size = data.length / dims[0];
  return data.subarray(row * size, (row + 1) * size);
}

/** Hypotheses by score, one per text; of equal scores the one that ended first comes first. */
function bestTexts(ended) {
  const texts = new Set();
  return [...ended].sort((a, b) => b.score - a.score).filter(({ text }) => !texts.has(text) && texts.add(text));
}

function refuseOutOfRange(name, value, most) {
  if (!Number.isInteger(value) || value < 1 || value > most) throw new Error(`${name} is ${value}, must be 1 to ${most}`);
}

function defaultMaxLength(decoding, limits, sourceLength) {
  if (decoding.max_length) return decoding.max_length;
  if (!decoding.max_length_ratio) return limits.max_target_tokens;
  return Math.min(limits.max_target_tokens, Math.ceil(decoding.max_length_ratio * sourceLength - 1e-9) + 10);
}
