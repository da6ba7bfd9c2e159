"""Which target symbols a source symbol is translated to: IBM model 1 (Brown et al. 1993, section 4.2).

Shapes: L links (a target position and a source position of its pair), C distinct (source symbol, target symbol).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.corpus import Corpus

MAX_LINKS: Final = 40_000_000
"""Of a corpus no more than about this many are looked at, evenly spread over its pairs: about 1.5 GB."""

NUM_ROUNDS: Final = 5
"""Of expectation and maximization. Model 1 has no local optima; after these the order of the likeliest hardly moves."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What a source symbol is translated to.

    Attributes:
        candidates: [source vocabulary, N] int32 target ids, the likeliest first; -1 behind the last.
    """

    candidates: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Links:
    """All positions that may be translations of each other.

    Attributes:
        cells: [L] which (source symbol, target symbol).
        positions: [L] which target position.
        cell_sources, cell_targets: [C] the symbols; the empty source symbol, NULL, is the one behind the vocabulary.
    """

    cells: NDArray[np.int64]
    positions: NDArray[np.int64]
    cell_sources: NDArray[np.int64]
    cell_targets: NDArray[np.int64]


def learn_lexicon(
    corpus: Corpus, source_vocabulary_size: int, num_candidates: int, *, max_links: int = MAX_LINKS
) -> Lexicon:
    """Learns it from training pairs.

    Args:
        num_candidates: N, target symbols per source symbol.
    """
    links = _links(corpus, source_vocabulary_size, max_links)
    probabilities = _model_1(links, source_vocabulary_size + 1)
    return Lexicon(_likeliest(links, probabilities, source_vocabulary_size, num_candidates))


def _links(corpus: Corpus, null: int, max_links: int) -> _Links:
    chosen = _evenly(corpus, max_links)
    source_parts, target_parts, position_parts, num_positions = [], [], [], 0
    for index in chosen.tolist():
        sources, targets = np.append(corpus.sources[index], null), corpus.targets[index]
        source_parts.append(np.tile(sources, len(targets)))
        target_parts.append(np.repeat(targets, len(sources)))
        position_parts.append(np.repeat(np.arange(num_positions, num_positions + len(targets)), len(sources)))
        num_positions += len(targets)
    # A cell's key: its two symbols in one number.
    keys = np.concatenate(target_parts).astype(np.int64) * (null + 1) + np.concatenate(source_parts)
    distinct, cells = np.unique(keys, return_inverse=True)
    return _Links(cells, np.concatenate(position_parts), distinct % (null + 1), distinct // (null + 1))


def _evenly(corpus: Corpus, max_links: int) -> NDArray[np.int64]:
    """Indices of pairs."""
    num_links = int(((corpus.sources.lengths + 1) * corpus.targets.lengths).sum())
    num_pairs = max(1, min(len(corpus), len(corpus) * max_links // max(1, num_links)))
    return np.linspace(0, len(corpus) - 1, num_pairs).astype(np.int64)


def _model_1(links: _Links, num_sources: int) -> NDArray[np.float64]:
    """t(target | source) of every cell, [C]."""
    probabilities = np.ones(len(links.cell_sources))
    for _ in range(NUM_ROUNDS):
        of_links = probabilities[links.cells]
        totals = np.bincount(links.positions, of_links)
        counts = np.bincount(links.cells, of_links / totals[links.positions], len(links.cell_sources))
        of_sources = np.bincount(links.cell_sources, counts, num_sources)
        probabilities = counts / np.maximum(of_sources[links.cell_sources], np.finfo(np.float64).tiny)
    return probabilities


def _likeliest(
    links: _Links, probabilities: NDArray[np.float64], num_sources: int, num_candidates: int
) -> NDArray[np.int32]:
    # By source, then by falling probability; equal ones by id, so that the same pairs give the same lists.
    order = np.lexsort((links.cell_targets, -probabilities, links.cell_sources))
    sources, targets = links.cell_sources[order], links.cell_targets[order]
    ranks = np.arange(len(order)) - np.searchsorted(sources, sources)
    kept = (sources < num_sources) & (ranks < num_candidates)
    found = np.full((num_sources, num_candidates), -1, np.int32)
    found[sources[kept], ranks[kept]] = targets[kept]
    return found
