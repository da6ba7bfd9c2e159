"""Measures models that were trained on single words on words that are run together.

Shapes: T sounds, S letters and the end.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.files import write_json
from attendant.runtime.stepper import Floats
from attendant.training.data.pairs import read_pairs
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.metrics import take_statistics
from experiments.alignment.error_rate import attended, open_model
from experiments.long_sources.texts import LongSource, run_together
from experiments.plan import RUNS, ended_runs, load_plan, read_results

RESULTS: Final = RUNS / "long-sources.json"
"""By path."""

PLAN: Final = "which-attention"
VARIANTS: Final = ("general", "additive", "previous", "input-feeding")
REFERENCE: Final = Path("models/g2p-en")
LENGTHS: Final = (10, 20, 50, 100, 250, 500)
"""Letters."""

NUM_SOURCES: Final = 20
PLACES: Final = 2
"""Of LENGTHS: the sources that are looked at sound by sound."""

BIN: Final = 10
NUM_BINS: Final = 3
"""Bins of that many sounds of theirs."""


def measure_long_sources() -> None:
    """Measures what is missing in RESULTS of the plan's runs and of REFERENCE. Raises UserError: there are no runs."""
    torch.set_num_threads(1)
    results, groups = read_results(RESULTS, {}), list(_draw())
    for path in [path for paths in measured_models().values() for path in paths]:
        if str(path) not in results:
            print(path, flush=True)
            results[str(path)] = _measured(open_model(path), groups)
            write_json(RESULTS, results)


def measured_models() -> dict[str, list[Path]]:
    """The runs of each variant, and REFERENCE. Raises UserError: no training of the plan has ended."""
    plan = load_plan(PLAN)
    found = {
        variant.what: [run.path for run in ended_runs(PLAN, plan, variant)]
        for variant in plan.variants
        if variant.name in VARIANTS
    }
    if not all(found.values()):
        raise UserError(f"a variant of {PLAN} has no training that has ended: python -m experiments train {PLAN}")
    return found | {str(REFERENCE): [REFERENCE]}


def _draw() -> Iterator[list[LongSource]]:
    """For each length the same sources for all models, of test words."""
    files = load_plan(PLAN).resolved(load_plan(PLAN).variants[0], 1).data.test
    assert files is not None
    pairs, generator = list(read_pairs(files)), random.Random(1)
    for length in LENGTHS:
        yield [run_together(pairs, length, generator) for _ in range(NUM_SOURCES)]


def _measured(model: TextModel, groups: Sequence[Sequence[LongSource]]) -> dict[str, Any]:
    """What RESULTS has of a model.

    Returns:
        by length: `per`, in %, of greedy outputs; `on_word`, the % of attention on the letters of the word that is
        being said, where the model is made to say the words' own sounds. Of sources of one length, by bins of BIN
        sounds: `right`, the % of the sounds that are in the output; `on_word_by_place`.
    """
    sources = [one for group in groups for one in group]
    outputs = _decoded(model, sources)
    weights = attended(model, sources)
    on_words = [_on_words(one, found) for one, found in zip(sources, weights, strict=True)]
    per, on_word = list[float](), list[float]()
    for start in range(0, len(sources), NUM_SOURCES):
        group = slice(start, start + NUM_SOURCES)
        references = [(" ".join(one.sounds),) for one in sources[group]]
        per.append(round(take_statistics("per", outputs[group], references).value, 2))
        on_word.append(round(float(100 * np.concatenate(on_words[group]).mean()), 2))
    group = slice(PLACES * NUM_SOURCES, (PLACES + 1) * NUM_SOURCES)
    right = [_found(one, said) for one, said in zip(sources[group], outputs[group], strict=True)]
    return {"per": per, "on_word": on_word, "right": _binned(right), "on_word_by_place": _binned(on_words[group])}


def _decoded(model: TextModel, sources: Sequence[LongSource]) -> list[str]:
    """Greedily, cut after as many sounds as there are letters."""
    ids = model.source_ids([one.word for one in sources])
    options = [DecodingOptions(max_length=len(one.word)) for one in sources]
    found = decode_all(model.stepper, ids, options, model.special_ids)
    return [model.target_tokenizer.decode(best.token_ids) for (best, *_) in found]


def _found(source: LongSource, said: str) -> NDArray[np.float64]:
    """[T] 1 for each sound that stands in the output, by the fewest edits."""
    found = np.zeros(len(source.sounds))
    for kind, _, _, start, end in Levenshtein.opcodes(said.split(), source.sounds):
        if kind == "equal":
            found[start:end] = 1
    return found


def _on_words(source: LongSource, weights: Floats) -> NDArray[np.float64]:
    """[T] the share of attention [T, S] on the word of each sound."""
    return np.array([row[slice(*span)].sum() for row, span in zip(weights, source.spans, strict=False)], np.float64)


def _binned(shares: Sequence[NDArray[np.float64]]) -> list[float]:
    """% of each bin, over sources [T], whose ends are left out."""
    bins = np.stack([each[: NUM_BINS * BIN] for each in shares]).reshape(len(shares), NUM_BINS, BIN)
    return [round(float(value), 2) for value in 100 * bins.mean((0, 2))]
