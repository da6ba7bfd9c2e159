"""Measures models of single words on sources far longer than those of training: words joined without separators.

Shapes: T sounds, S letters and the end.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from attendant.recipes.papers.alignment import SpokenWord, attended, open_model
from attendant.recipes.papers.harness import RUNS, draw_runs, load_plan, picture, read_results, spread, write_table
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.files import write_json
from attendant.runtime.stepper import Floats
from attendant.training.data.pairs import Pair, read_pairs
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.metrics import take_statistics

RESULTS: Final = RUNS / "long-sources.json"  # Path of a model -> its measurements.
PAGE: Final = "long-sources"
PLAN: Final = "which-attention"
VARIANTS: Final = ("general", "additive", "previous", "input-feeding")
REFERENCE: Final = Path("runs/g2p-cmudict")
LENGTHS: Final = (10, 20, 50, 100, 250, 500)  # Letters.
NUM_SOURCES: Final = 20
DETAILED: Final = 2  # Index in LENGTHS of the sources that are also measured by the position of the sounds.
BIN_SIZE: Final = 10
NUM_BINS: Final = 3  # Bins of BIN_SIZE sounds.
PANELS: Final = (("per", "PER (%)"), ("on_word", "attention on the word that is said (%)"))


@dataclass(frozen=True, slots=True)
class LongSource(SpokenWord):
    """Several words joined without separators, with the sounds of all, in order. `spans` has for each sound the letters
    [start, end) of its word.
    """

    spans: tuple[tuple[int, int], ...]


def run_together(pairs: Sequence[Pair], num_letters: int, generator: random.Random) -> LongSource:
    """Draws whole words until there are at least `num_letters` letters."""
    word, sounds, spans = "", list[str](), list[tuple[int, int]]()
    while len(word) < num_letters:
        pair = generator.choice(pairs)
        new = pair.target.split()
        spans += [(len(word), len(word) + len(pair.source))] * len(new)
        word += pair.source
        sounds += new
    return LongSource(word, tuple(sounds), tuple(spans))


def study_long_sources() -> None:
    """Measures the models that RESULTS lacks, and writes docs/experiments/long-sources.md.

    Raises:
        UserError: a variant of the plan has no ended run.
    """
    torch.set_num_threads(1)
    plan, results = load_plan(PLAN), read_results(RESULTS, {})
    variants = [variant for variant in plan.variants if variant.name in VARIANTS]
    models = {variant.label: [run.path for run in plan.ended_runs(variant)] for variant in variants}
    if not all(models.values()):
        raise plan.without_runs()
    models[str(REFERENCE)] = [REFERENCE]
    missing = [path for paths in models.values() for path in paths if str(path) not in results]
    if missing:
        files, generator = plan.resolved(plan.variants[0], 1).data.test, random.Random(1)
        assert files is not None
        words = list(read_pairs(files))
        sources = [run_together(words, length, generator) for length in LENGTHS for _ in range(NUM_SOURCES)]
        for path in missing:
            print(path, flush=True)
            results[str(path)] = _measure(open_model(path), sources)
            write_json(RESULTS, results)
    _show({name: [results[str(path)] for path in paths] for name, paths in models.items()})


def _measure(model: TextModel, sources: Sequence[LongSource]) -> dict[str, Any]:
    """Measures greedy outputs, and attention with the words' own sounds as the target, in %.

    Returns:
        for each length: `per`; `on_word`, attention on the letters of the sound's own word. For sources of the length
        DETAILED, by bins of sounds: `right`, sounds that are in the output; `on_word_by_place`.
    """
    # Outputs are cut when they have one sound per letter.
    options = [DecodingOptions(max_length=len(source.word)) for source in sources]
    source_ids = model.source_ids([source.word for source in sources])
    decoded = decode_all(model.stepper, source_ids, options, model.special_ids)
    outputs = [model.target_tokenizer.decode(best.token_ids) for (best, *_) in decoded]
    on_words = [attention_on_words(*pair) for pair in zip(sources, attended(model, sources), strict=True)]
    per, on_word = list[float](), list[float]()
    for start in range(0, len(sources), NUM_SOURCES):
        group = slice(start, start + NUM_SOURCES)
        references = [(" ".join(source.sounds),) for source in sources[group]]
        per.append(round(take_statistics("per", outputs[group], references).value, 2))
        on_word.append(round(float(100 * np.concatenate(on_words[group]).mean()), 2))
    group = slice(DETAILED * NUM_SOURCES, (DETAILED + 1) * NUM_SOURCES)
    right = [sounds_in_output(source, output) for source, output in zip(sources[group], outputs[group], strict=True)]
    return {"per": per, "on_word": on_word, "right": _binned(right), "on_word_by_place": _binned(on_words[group])}


def sounds_in_output(source: LongSource, output: str) -> NDArray[np.float64]:
    """Returns [T]: 1 for each sound that is in the output, by the fewest edits."""
    right = np.zeros(len(source.sounds))
    for kind, _, _, start, end in Levenshtein.opcodes(output.split(), source.sounds):
        if kind == "equal":
            right[start:end] = 1
    return right


def attention_on_words(source: LongSource, weights: Floats) -> NDArray[np.float64]:
    """Returns [T]: the share of attention [T, S] on each sound's word."""
    return np.array([row[slice(*span)].sum() for row, span in zip(weights, source.spans, strict=False)], np.float64)


def _binned(shares: Sequence[NDArray[np.float64]]) -> list[float]:
    """Returns the mean of each bin, in %, over sources [T] without their ends."""
    bins = np.stack([own[: NUM_BINS * BIN_SIZE] for own in shares]).reshape(len(shares), NUM_BINS, BIN_SIZE)
    return [round(float(value), 2) for value in 100 * bins.mean((0, 2))]


def _show(models: dict[str, list[dict[str, Any]]]) -> None:
    """Writes the page's tables and picture of the measurements of each model's runs."""
    for measure, _ in PANELS:
        rows = [
            [name, str(len(runs)), *map(spread, zip(*(run[measure] for run in runs), strict=True))]
            for name, runs in models.items()
        ]
        write_table(PAGE, measure, ["model", "runs", *(f"{length} letters" for length in LENGTHS)], rows)
    rows = [
        [name, *map(spread, zip(*(run["right"] + run["on_word_by_place"] for run in runs), strict=True))]
        for name, runs in models.items()
    ]
    bins = [f"{number * BIN_SIZE + 1} to {(number + 1) * BIN_SIZE}" for number in range(NUM_BINS)]
    headings = [f"{share}, {sounds}" for share in ("right", "attention on the word") for sounds in bins]
    write_table(PAGE, "place", ["model", *headings], rows)
    with picture(PAGE, 3.2, columns=2) as axes:
        for axis, (measure, title) in zip(axes, PANELS, strict=True):
            for number, (name, runs) in enumerate(models.items()):
                draw_runs(axis, number, name, LENGTHS, [run[measure] for run in runs])
            axis.set_title(title)
            axis.set_xscale("log")
            axis.set_xticks(LENGTHS, list(map(str, LENGTHS)))
            axis.minorticks_off()
            axis.set_xlabel("letters of the source")
            axis.set_ylim(0, 100)
        axes[0].legend(frameon=False, fontsize=7)
