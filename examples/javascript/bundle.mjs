// A bundle in JavaScript: greedy and beam search over its two ONNX graphs, in node and in browsers.
//
// The format is described in docs/bundle.md. Shapes: B sources (here 1), R rows (live hypotheses), S source positions,
// M queries per source, K candidates per row.

import { Tokenizer } from "@huggingface/tokenizers";

const NO_ID = -1n; // in forced_ids and banned_ids: nothing
const LEAST_POSSIBLE = -1e8; // PAD and BOS, which are never generated, have -1e9
const WIDTH_MULTIPLE = 8; // sources are padded to a multiple of this, so that sums round alike at any width

// The characters of docs/bundle.md, for regular expressions; JavaScript's \s is another set.
const WHITE_SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const INVISIBLE = "\\p{Cc}\\p{Cf}\\u034f\\u3164\\uffa0";
const DRAWN = "\\t-\\r\\x1c-\\x1f\\x85\\u0600-\\u0605\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u{110bd}\\u{110cd}";
const TAGS = "\\u{e0020}-\\u{e007f}";
const NOT_JOINED = "Latin Greek Cyrillic Armenian Georgian Hebrew Han Hiragana Katakana Hangul".split(" ");
const JOINED = `(?![${NOT_JOINED.map((name) => `\\p{Script=${name}}`).join("")}])[\\p{L}\\p{M}\\p{So}\\p{Sk}]`;
const PLAIN_SPELLINGS = { "'": "’‘‛ʼʻ′＇´ʹꞌ", '"': "“”„‟«»‹›‚″＂〝〞〟", "-": "‐‑‒–—―−﹘﹣－" };

const listed = (characters) => [...characters].map((one) => `\\u{${one.codePointAt(0).toString(16)}}`).join("");
const without = (excluded, characters) => `(?![${excluded}])[${characters}]`;

// The normalization of texts for a tokenizer that has none of its own: regular expressions and replacements.
function spacing(symbols) {
  const known = new Set(symbols.join(""));
  const longer = new Set(symbols.filter((symbol) => [...symbol].length > 1).join(""));
  const isSpace = new RegExp(`[${WHITE_SPACE}]`, "u");
  const kept = [...known].filter((one) => /(?! )[\p{C}\p{Z}]/u.test(one) && (longer.has(one) || isSpace.test(one)));
  const keeps = listed(kept);
  const joiners = listed(["\u200c", "\u200d"].filter((one) => !kept.includes(one)));
  const removed = [without(`${DRAWN}\\u200c\\u200d${TAGS}${keeps}`, INVISIBLE), `(?<![\\u{1f3f4}${TAGS}])[${TAGS}]+`];
  if (joiners) removed.push(`(?<!${JOINED})[${joiners}]`, `[${joiners}](?!${JOINED})`);
  const spellings = Object.entries(PLAIN_SPELLINGS).filter(([plain]) => known.has(plain));
  return [
    [removed.join("|"), ""],
    [`(?:${without(keeps, WHITE_SPACE)})+`, " "],
    [`^[${WHITE_SPACE}]+|[${WHITE_SPACE}]+$`, ""],
    ...spellings.map(([plain, others]) => [`[${listed([...others].filter((one) => !known.has(one)))}]`, plain]),
  ].map(([pattern, replacement]) => [new RegExp(pattern, "gu"), replacement]);
}

/** A side's tokenizer: texts to ids and back. A side that takes tokens only has no library. */
class Side {
  constructor(description, special_ids, { tokens_only }) {
    this.library = tokens_only ? null : new Tokenizer(description, {});
    const vocabulary = description.model.vocab; // Unigram has pairs of symbol and score, other models a map to ids
    this.symbols = Array.isArray(vocabulary) ? vocabulary.map(([symbol]) => symbol) : [];
    if (!Array.isArray(vocabulary)) for (const [symbol, id] of Object.entries(vocabulary)) this.symbols[id] = symbol;
    for (const { id, content } of description.added_tokens) this.symbols[id] = content;
    this.ids = new Map(this.symbols.map((symbol, id) => [symbol, id]));
    this.hasDecoder = Boolean(this.library && description.decoder);
    this.unk = special_ids.unk;
    this.neverInText = [special_ids.pad, special_ids.bos, special_ids.eos];
    const ownIds = Object.values(special_ids);
    const spacesItself = this.library?.normalizer?.(" a\n") === "a";
    this.spacing = spacesItself ? [] : spacing(this.symbols.filter((_, id) => !ownIds.includes(id)));
  }

  idsOfText(text) {
    if (!this.library) {
      throw new Error("the source is a text, must be a list of tokens: this model's texts are segmented by a program of its own");
    }
    for (const [pattern, replacement] of this.spacing) text = text.replace(pattern, replacement);
    const ids = this.idsOfTokens(this.library.encode(text, { add_special_tokens: false }).tokens);
    return ids.map((id) => (this.neverInText.includes(id) ? this.unk : id)); // a word that is written "</s>" is text
  }

  idsOfTokens(tokens) {
    return tokens.map((token) => this.ids.get(token) ?? this.unk);
  }

  knownIds(tokens) {
    const unknown = tokens.filter((token) => !this.ids.has(token) || this.neverInText.includes(this.ids.get(token)));
    if (unknown.length) throw new Error(`the source has tokens that are not in the vocabulary: ${unknown.join(" ")}`);
    return this.idsOfTokens(tokens);
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
    bundle.source = new Side(await json("source_tokenizer.json"), manifest.special_ids, manifest.source);
    bundle.target = new Side(await json("target_tokenizer.json"), manifest.special_ids, manifest.target);
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
    if (typeof source !== "string" && !Array.isArray(source)) throw new Error("the source must be a text or a list of tokens");
    const ids = typeof source === "string" ? this.source.idsOfText(source) : this.source.knownIds(source);
    const length = ids.length; // without BOS and EOS
    if (length === 0) throw new Error(`the source is empty${source.length ? " once it is normalized" : ""}`);
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
      patience: options.patience ?? decoding.patience ?? 0,
    };
    const unknown = Object.keys(options).filter((name) => !(name in search));
    if (unknown.length) throw new Error(`there is no option ${unknown.join(", ")}; choose from ${Object.keys(search).join(", ")}`);
    const mostHypotheses = Math.min(search.beamSize, limits.max_num_hypotheses);
    refuseUnless(isWhole(search.beamSize, limits.max_beam_size), search, "beamSize", `1 to ${limits.max_beam_size}`);
    refuseUnless(isWhole(search.numHypotheses, mostHypotheses), search, "numHypotheses", `1 to ${mostHypotheses}`);
    refuseUnless(isWhole(search.maxLength, limits.max_target_tokens), search, "maxLength", `1 to ${limits.max_target_tokens}`);
    for (const name of ["lengthPenalty", "lengthPenaltyOffset", "patience"]) {
      refuseUnless(Number.isFinite(search[name]) && search[name] >= 0 && search[name] <= 10, search, name, "0 to 10");
    }
    const hypotheses = await this.#search(ids, search);
    return { sourceTokens, hypotheses };
  }

  // Beam search; with a beam of 1 it is greedy. Of the best k continuations of all live hypotheses, those that are EOS
  // end a hypothesis; the best k others live on. The search is over when no live hypothesis can become one of the
  // `numHypotheses` best: its log-probability can only fall, so its score can't exceed the one at its maximum length. With
  // `patience`, it is over when that number of beams has ended.
  async #search(sourceIds, { beamSize, numHypotheses, lengthPenalty, lengthPenaltyOffset, maxLength, patience }) {
    const { eos, start } = this.manifest.special_ids;
    const penalty = (length) => ((lengthPenaltyOffset + length) / (lengthPenaltyOffset + 1)) ** lengthPenalty;
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
    const best = () => bestTexts(ended).slice(0, numHypotheses);
    // A live hypothesis matters if its score can exceed this.
    const bound = () => {
      const found = numHypotheses > 1 ? bestTexts(ended) : ended;
      if (patience) {
        const enough = Math.max(numHypotheses, Math.ceil(patience * beamSize - 1e-5)); // 1.1 * 10 is 11
        return found.length < enough ? -Infinity : Infinity;
      }
      return found.length < numHypotheses ? -Infinity : best().at(-1).score;
    };

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
      const greedyEnd = beamSize === 1 && ended.length > 0;
      if (greedyEnd || !chosen.length || chosen[0].sum / penalty(maxLength + 1) <= bound()) return best();
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

const isWhole = (value, most) => Number.isInteger(value) && value >= 1 && value <= most;

function refuseUnless(held, options, name, limit) {
  if (!held) throw new Error(`${name} is ${options[name]}, must be ${limit}`);
}

function defaultMaxLength(decoding, limits, sourceLength) {
  if (decoding.max_length) return decoding.max_length;
  if (!decoding.max_length_ratio) return limits.max_target_tokens;
  return Math.min(limits.max_target_tokens, Math.ceil(decoding.max_length_ratio * sourceLength - 1e-9) + 10);
}
