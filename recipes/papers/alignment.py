"""Measures the attention of pronunciation models: how well it aligns letters with sounds, compared with an alignment
made by hand (letters-to-sounds.md), and which source positions an answer needs.

Shapes: T sounds, S letters and the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from attendant.recipes.papers.harness import write_picture, write_table
from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Floats
from attendant.training.evaluation.bootstrap import (
    DEFAULT_RESAMPLES,
    Interval,
    interval_text,
    percentiles,
    resampled_totals,
)
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.metrics import Floats64
from attendant.training.evaluation.session import is_bundle, open_bundle_model
from attendant.training.report.pictures import attention_map
from attendant.training.run.loading import open_runs
from attendant_client.alignment import Link, hard_links

WORDS: Final = Path(__file__).parent / "letters-to-sounds.tsv"
PAGE: Final = "alignment"
SHOWN_WORD: Final = "thoroughfare"

WEIGHT_EDGES: Final = (0.01, 0.1, 0.5)
WEIGHT_CLASSES: Final = ("below 0.01", "0.01 to 0.1", "0.1 to 0.5", "above 0.5")
"""Classes of source positions by their highest weight in any step."""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    word: str
    sounds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlignedWord(SpokenWord):
    """A word with its links of letters and sounds, both counted from 0.

    Attributes:
        sure: links that an alignment must have.
        possible: links that it may have; they include the sure ones.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


def read_words() -> list[AlignedWord]:
    return [_parse(*line.split("\t")) for line in WORDS.read_text(encoding="utf-8").splitlines()]


def _parse(word: str, pieces: str) -> AlignedWord:
    sounds: list[str] = []
    sure, possible = set[Link](), set[Link]()
    start = 0
    for piece in pieces.split(" "):
        letters, _, written = piece.partition("=")
        new = written.split("+") if written else []
        links = {(start + letter, len(sounds) + sound) for letter in range(len(letters)) for sound in range(len(new))}
        possible |= links
        sure |= links if len(letters) == 1 else set()
        start += len(letters)
        sounds += new
    assert start == len(word), word
    return AlignedWord(word, tuple(sounds), frozenset(sure), frozenset(possible))


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of links with those made by hand (Och and Ney 2003), in %.

    Attributes:
        precision: share of the links that are possible.
        recall: share of the sure links that were found.
        error_rate: AER = 1 - (|A and S| + |A and P|) / (|A| + |S|).
        interval: the error rate's 95 % interval over words.
    """

    precision: float
    recall: float
    error_rate: float
    interval: Interval


def agreement(links: Sequence[Sequence[Link]], words: Sequence[AlignedWord]) -> Agreement:
    pairs = [(word, set(own)) for word, own in zip(words, links, strict=True)]
    rows = [(len(word.sure & own), len(word.possible & own), len(own), len(word.sure)) for word, own in pairs]
    counts = np.array(rows, np.float64)
    in_sure, in_possible, num_links, num_sure = counts.sum(0)
    resampled = [_error_rate(totals) for totals in resampled_totals(counts, DEFAULT_RESAMPLES)]
    return Agreement(
        precision=100 * in_possible / num_links,
        recall=100 * in_sure / num_sure,
        error_rate=_error_rate(counts.sum(0)),
        interval=percentiles(np.array(resampled)),
    )


def _error_rate(totals: Floats64) -> float:
    in_sure, in_possible, num_links, num_sure = totals
    return float(100 * (1 - (in_sure + in_possible) / (num_links + num_sure)))


def open_model(path: Path) -> TextModel:
    """Opens a run or a bundle. Raises UserError: it is neither."""
    return (open_bundle_model(path) if is_bundle(path) else open_runs([path])).model


def attended(model: TextModel, words: Sequence[SpokenWord]) -> list[Floats]:
    """Returns the attention [T, S] of each word, with its own sounds as the target (teacher forcing).

    Raises:
        UserError: the model has no attention, or lacks a sound.
    """
    targets = model.target_tokenizer.encode_batch([" ".join(word.sounds) for word in words])
    for word, target in zip(words, targets, strict=True):
        if UNK_ID in target:
            sound = word.sounds[target.index(UNK_ID)]
            raise UserError(f"the model has no symbol for {sound} of {word.word}: give a run of the recipe g2p-cmudict")
    options = [scoring_options(target, model.special_ids.eos, attention=True) for target in targets]
    sources = model.source_ids([word.word for word in words])
    scored = decode_all(model.stepper, sources, options, model.special_ids)
    weights = [hypothesis.attention for (hypothesis, *_) in scored if hypothesis.attention is not None]
    if not weights:
        raise UserError("the model has no attention")
    return weights


def changed_by_masking(model: TextModel, sources: Sequence[Sequence[int]]) -> tuple[list[Floats], list[list[bool]]]:
    """Decodes sources greedily: first unmasked, then with each of their positions masked in turn.

    Returns:
        the attention [T, S] of each unmasked answer; and for each position, True if masking it changes the answer.
    """
    limit = 2 * max(map(len, sources))
    plain = decode_all(model.stepper, sources, DecodingOptions(max_length=limit, attention=True), model.special_ids)
    places = [(number, position) for number, source in enumerate(sources) for position in range(len(source))]
    options = [DecodingOptions(max_length=limit, masked_source_positions=(position,)) for _, position in places]
    masked = decode_all(model.stepper, [sources[number] for number, _ in places], options, model.special_ids)
    changed: list[list[bool]] = [[] for _ in sources]
    for (number, _), (hypothesis, *_) in zip(places, masked, strict=True):
        changed[number].append(hypothesis.token_ids != plain[number][0].token_ids)
    return [hypothesis.attention for (hypothesis, *_) in plain if hypothesis.attention is not None], changed


def _needed_rows(weights: Sequence[Floats], changed: Sequence[Sequence[bool]]) -> Iterator[list[str]]:
    """Yields a row per class of positions: its name, their number, and the share that answers need, with interval."""
    classes = [np.digitize(own.max(axis=0), WEIGHT_EDGES) for own in weights]
    for number, name in enumerate(WEIGHT_CLASSES):
        members = [own == number for own in classes]
        needed = [np.array(own)[rows] for own, rows in zip(changed, members, strict=True)]
        counts = np.array([(len(own), own.sum()) for own in needed], np.float64)
        shares = [100 * need / max(1.0, of) for of, need in resampled_totals(counts, DEFAULT_RESAMPLES)]
        num, num_needed = counts.sum(0)
        share, interval = f"{100 * num_needed / max(1.0, num):.1f}", interval_text(percentiles(np.array(shares)), 1)
        yield [name, f"{num:.0f}", share, interval]


def attention_links(weights: Sequence[Floats], words: Sequence[AlignedWord]) -> list[tuple[Link, ...]]:
    """Returns the hard links of attention. Attention on the source's end makes no link."""
    return [
        hard_links(own.tolist(), len(word.sounds), [len(word.word)]) for own, word in zip(weights, words, strict=True)
    ]


def diagonal_links(words: Sequence[AlignedWord]) -> list[tuple[Link, ...]]:
    """Links each sound to the letter at the same relative position: a baseline without knowledge of letters."""
    return [
        tuple((len(word.word) * (2 * sound + 1) // (2 * len(word.sounds)), sound) for sound in range(len(word.sounds)))
        for word in words
    ]


def error_rate_of(path: Path) -> float:
    """Returns the error rate of a run or bundle. Raises UserError: it is neither, or has no attention."""
    words = read_words()
    return agreement(attention_links(attended(open_model(path), words), words), words).error_rate


def show_alignment(path: Path) -> None:
    """Writes the tables and the picture of docs/experiments/alignment.md for a run or a bundle. Raises UserError."""
    words, model = read_words(), open_model(path)
    weights = attended(model, words)
    links = attention_links(weights, words)
    rows = []
    for name, own in (("attention", links), ("the diagonal", diagonal_links(words))):
        result = agreement(own, words)
        shares = f"{result.precision:.1f}", f"{result.recall:.1f}"
        rows.append([name, f"{result.error_rate:.1f}", interval_text(result.interval, 1), *shares])
    write_table(PAGE, "table", ("links", "AER %", "95 % interval", "precision %", "recall %"), rows)
    write_table(PAGE, "differences", ("word", "sound", "attention", "hand"), list(_differences(links, words)))
    needed = _needed_rows(*changed_by_masking(model, model.source_ids([word.word for word in words])))
    headings = "highest weight", "positions", "whose mask changes the answer, %", "95 % interval"
    write_table(PAGE, "needed", headings, list(needed))
    index = [word.word for word in words].index(SHOWN_WORD)
    end = ["</s>"]
    drawn = attention_map(weights[index], [*SHOWN_WORD, *end * model.append_eos], [*words[index].sounds, *end])
    write_picture(PAGE, drawn)


def _differences(links: Sequence[Sequence[Link]], words: Sequence[AlignedWord]) -> Iterator[list[str]]:
    """Yields the sounds that attention links to none of their possible letters."""
    for own, word in zip(links, words, strict=True):
        for sound, name in enumerate(word.sounds):
            possible, attended_letters = (
                {letter for letter, linked in pairs if linked == sound} for pairs in (word.possible, own)
            )
            if attended_letters != possible and not attended_letters & possible:
                yield [word.word, name, _marked(word.word, attended_letters), _marked(word.word, possible)]


def _marked(word: str, letters: set[int]) -> str:
    """Returns the word with these letters in capitals, or `none` if there are no letters."""
    return "".join(letter.upper() if i in letters else letter for i, letter in enumerate(word)) if letters else "none"
