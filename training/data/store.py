"""Tokenized training splits on disk: written once, pair by pair, and memory-mapped from then on.

    <folder>/<key>/source_ids.bin, target_ids.bin            int32, sequences end to end
                   source_offsets.bin, target_offsets.bin    int64, where each begins, and the end
                   corpus.json                               counts, and what the caller of `store` recorded

The key is the digest of all that decides the content, so what stands under it is right; a directory appears whole.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder, unless_there, write_json
from attendant.training.data.corpus import Corpus, PairEncoder, TokenSequences, in_chunks
from attendant.training.data.pairs import Pair

SIDES = ("source", "target")
RECORD_NAME = "corpus.json"


def open_stored(directory: Path) -> tuple[Corpus, dict[str, Any]] | None:
    """The corpus of a directory and what was recorded with it; None where there is no such directory. Raises UserError:
    files are missing or not of the size they should have.
    """
    if not directory.exists():
        return None
    try:
        record: dict[str, Any] = json.loads((directory / RECORD_NAME).read_text(encoding="utf-8"))
        sources, targets = (_mapped(directory, side, record["num_pairs"], record["num_tokens"][side]) for side in SIDES)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{directory} is damaged ({error}): remove it, and it will be made again") from None
    return Corpus(sources, targets, record["num_too_long"], record["num_unequal"]), record["said"]


def store(directory: Path, pairs: Iterable[Pair], encoder: PairEncoder, said: dict[str, Any]) -> None:
    """Tokenizes pairs into a directory, which stands afterwards whole or not at all.

    Args:
        said: values of JSON, which `open_stored` gives back.

    Raises:
        UserError: nothing is left of the pairs; the disk is full.
    """
    with new_folder(directory, put=unless_there) as folder:
        lengths = _write_ids(folder, encoder.encode(pairs))
        for side in SIDES:
            offsets = np.concatenate([[0], np.cumsum(np.frombuffer(lengths[side], np.int32), dtype=np.int64)])
            (folder / f"{side}_offsets.bin").write_bytes(offsets.astype(np.int64).data)
        record = {
            "num_pairs": len(lengths["source"]),
            "num_tokens": {side: int(np.frombuffer(lengths[side], np.int32).sum(dtype=np.int64)) for side in SIDES},
            "num_too_long": encoder.num_too_long,
            "num_unequal": encoder.num_unequal,
            "said": said,
        }
        write_json(folder / RECORD_NAME, record)


def _write_ids(folder: Path, pairs: Iterable[tuple[list[int], list[int]]]) -> dict[str, "array[int]"]:
    """Returns the lengths by side, in int32."""
    lengths = {side: array("i") for side in SIDES}
    with (folder / "source_ids.bin").open("wb") as sources, (folder / "target_ids.bin").open("wb") as targets:
        for chunk in in_chunks(pairs):
            for place, (side, file) in enumerate(zip(SIDES, (sources, targets), strict=True)):
                sequences: Sequence[list[int]] = [pair[place] for pair in chunk]
                file.write(np.fromiter(chain.from_iterable(sequences), np.int32).data)
                lengths[side].extend(map(len, sequences))
    return lengths


def _mapped(directory: Path, side: str, num_pairs: int, num_tokens: int) -> TokenSequences:
    ids, offsets = directory / f"{side}_ids.bin", directory / f"{side}_offsets.bin"
    for path, size in ((ids, 4 * num_tokens), (offsets, 8 * (num_pairs + 1))):
        if path.stat().st_size != size:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, expected {size}")
    # As plain arrays over the mapping: np.memmap's own slices cost several times as much.
    return TokenSequences(np.asarray(np.memmap(ids, np.int32, "r")), np.asarray(np.memmap(offsets, np.int64, "r")))
