"""Finds duplicate pairs of the training split, and sources that held-out splits share, in one streaming pass."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendant.training.data.config import DataConfig
from attendant.training.data.pairs import Pair

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found in the training split.

    Attributes:
        num_pairs: pairs in its files.
        num_duplicates: pairs that are equal to an earlier one.
        num_shared: pairs whose source stands in a held-out split too.
        num_left_out: duplicates and shared pairs that the recipe drops.
        shared_sources: held-out split -> those of its sources that the training split has too, sorted.
    """

    num_pairs: int
    num_duplicates: int
    num_shared: int
    num_left_out: int
    shared_sources: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which pairs of the files are trained on.

    Attributes:
        stays: [num_pairs] bool.
    """

    stays: NDArray[np.bool_]

    def of(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        return itertools.compress(pairs, self.stays)


def survey(
    pairs: Iterable[Pair], config: DataConfig, held_out: Mapping[str, frozenset[str]]
) -> tuple[Survey, Selection]:
    """Reads all pairs once and keeps 17 bytes of each: a digest, and whether its source is held out.

    Args:
        held_out: split -> its sources, compared as the files have them.
    """
    every = frozenset[str]().union(*held_out.values())
    found: set[str] = set()
    digests, shared = bytearray(), bytearray()
    for pair in pairs:
        # No text has a tab beside a line feed, so no two pairs give the same bytes.
        digests += hashlib.blake2b(f"{pair.source}\t\n{pair.target}".encode(), digest_size=DIGEST_BYTES).digest()
        is_shared = pair.source in every
        shared.append(is_shared)
        if is_shared:
            found.add(pair.source)
    is_shared_pair = np.frombuffer(shared, np.bool_)
    is_duplicate = _repeated(np.frombuffer(digests, np.uint64).reshape(len(shared), -1))
    stays = np.ones(len(shared), np.bool_)
    if config.drop_duplicates:
        stays &= ~is_duplicate
    if config.shared_sources == "drop_from_train":
        stays &= ~is_shared_pair
    said = Survey(
        num_pairs=len(stays),
        num_duplicates=int(is_duplicate.sum()),
        num_shared=int(is_shared_pair.sum()),
        num_left_out=int((~stays).sum()),
        shared_sources={split: sorted(found & sources) for split, sources in held_out.items()},
    )
    return said, Selection(stays)


def _repeated(rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of rows [N, 2] uint64 are equal to an earlier one: [N] bool."""
    order = np.lexsort(rows.T)  # stable: of equal rows the first one stays first
    is_repeated = np.zeros(len(rows), np.bool_)
    same = (rows[order[1:]] == rows[order[:-1]]).all(1)
    is_repeated[order[1:]] = same
    return is_repeated
