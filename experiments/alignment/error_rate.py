"""The alignment error rate (Och and Ney 2003) of attention's hard links."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import scoring_options
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Floats
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, Interval, percentiles, resampled_totals
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.metrics import Floats64
from attendant.training.evaluation.session import is_bundle, open_bundle_model
from attendant.training.run.loading import open_run
from attendant_client.alignment import Link, hard_links
from experiments.alignment.hand import AlignedWord, read_words


@dataclass(frozen=True, slots=True)
class Agreement:
    """How links agree with the hand's.

    Attributes:
        precision: % of the links that are possible.
        recall: % of the sure ones that are among them.
        error_rate: AER = 1 - (|A and S| + |A and P|) / (|A| + |S|), in %.
        interval: 95 %, of the error rate, over words.
    """

    precision: float
    recall: float
    error_rate: float
    interval: Interval


def open_model(path: Path) -> TextModel:
    """Of a run or a bundle. Raises UserError: it is neither."""
    return (open_bundle_model(path) if is_bundle(path) else open_run(path)).model


class Spoken(Protocol):
    """A word, or several run together, and its sounds."""

    @property
    def word(self) -> str: ...
    @property
    def sounds(self) -> tuple[str, ...]: ...


def attended(model: TextModel, words: Sequence[Spoken]) -> list[Floats]:
    """The attention [T, S] of a model that is made to say the words' own sounds. Raises UserError: it has none."""
    sources = model.source_ids([word.word for word in words])
    targets = model.target_tokenizer.encode_batch([" ".join(word.sounds) for word in words])
    options = [scoring_options(target, model.special_ids.eos, attention=True) for target in targets]
    found = [one.attention for (one, *_) in decode_all(model.stepper, sources, options, model.special_ids)]
    weights = [one for one in found if one is not None]
    if not weights:
        raise UserError("the model has no attention")
    return weights


def links_of(weights: Sequence[Floats], words: Sequence[AlignedWord]) -> list[tuple[Link, ...]]:
    """The hard links of attention; a column behind the letters is the source's end."""
    return [
        hard_links(one.tolist(), len(word.sounds), len(word.word)) for one, word in zip(weights, words, strict=True)
    ]


def diagonal_links(words: Sequence[AlignedWord]) -> list[tuple[Link, ...]]:
    """Each sound at the letter that is as far in the word: what knowing nothing of letters gives."""
    return [
        tuple((len(word.word) * (2 * sound + 1) // (2 * len(word.sounds)), sound) for sound in range(len(word.sounds)))
        for word in words
    ]


def agreement(links: Sequence[Sequence[Link]], words: Sequence[AlignedWord]) -> Agreement:
    rows = np.array(
        [
            (len(word.sure & set(found)), len(word.possible & set(found)), len(found), len(word.sure))
            for found, word in zip(links, words, strict=True)
        ],
        np.float64,
    )
    in_sure, in_possible, num_links, num_sure = rows.sum(0)
    resampled = [_error_rate(totals) for totals in resampled_totals(rows, DEFAULT_RESAMPLES)]
    return Agreement(
        precision=100 * in_possible / num_links,
        recall=100 * in_sure / num_sure,
        error_rate=_error_rate(rows.sum(0)),
        interval=percentiles(np.array(resampled)),
    )


def error_rate_of(path: Path) -> Agreement:
    """Of the run or bundle at `path`. Raises UserError."""
    words = read_words()
    return agreement(links_of(attended(open_model(path), words), words), words)


def _error_rate(totals: Floats64) -> float:
    in_sure, in_possible, num_links, num_sure = totals
    return float(100 * (1 - (in_sure + in_possible) / (num_links + num_sure)))
