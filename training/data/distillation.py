"""Knowledge distillation: the `[distillation]` table of a recipe, and the teachers' soft targets on disk.

    <folder>/symbols.bin          int32 [P, K]: of each target position, end to end, the teachers' most probable symbols
             probabilities.bin    float16 [P, K], each row's sum 1

Shapes: P target positions of a corpus, EOS included; N of some pairs of it; K symbols of each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder, unless_there
from attendant.training.kernels.loss import SoftTargets
from attendant.training.table import Count, Table

SYMBOLS_FILE, PROBABILITIES_FILE = "symbols.bin", "probabilities.bin"


class DistillationConfig(Table):
    """`[distillation]`: learning from the distributions of other runs, symbol by symbol (Hinton et al. 2015; Kim and
    Rush 2016). Learning from their outputs needs no table: `attendant label` writes them as pairs.

    Attributes:
        teachers: run directories, whose best weights predict the distributions; several: the mean of their
            probabilities. Their tokenizers are used, so `[source]` and `[target]` must be equal. They are evaluated
            once, before the training; --resume no longer needs them.
        weight: share of the teachers' distribution in the target of the loss; the true symbols have the rest.
        top_k: how many of a teacher's symbols are kept for each position, 6 bytes each; the others count as impossible.
    """

    teachers: tuple[str, ...] = ()
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    top_k: Count = 8

    @model_validator(mode="after")
    def nothing_without_teachers(self) -> Self:
        for name in ("weight", "top_k"):
            value = getattr(self, name)
            if not self.teachers and value != type(self).model_fields[name].default:
                raise ValueError(f"distillation.{name} = {value} means nothing without distillation.teachers")
        return self


@dataclass(frozen=True, slots=True)
class CorpusSoftTargets:
    """The teachers' distributions at every target position of a corpus.

    Attributes:
        symbols: [P, K] int32; probabilities: [P, K] float16.
        offsets: where each pair's targets begin among all, without EOS.
        weight: see DistillationConfig.
    """

    symbols: NDArray[np.int32]
    probabilities: NDArray[np.float16]
    offsets: NDArray[np.int64]
    weight: float

    def of(self, indices: NDArray[np.int64] | Sequence[int]) -> SoftTargets:
        """Those at the N positions of these pairs, pair after pair, times the weight."""
        places = positions_of(self.offsets, indices)
        probabilities = torch.from_numpy(self.probabilities[places].astype(np.float32))
        return SoftTargets(torch.from_numpy(self.symbols[places].astype(np.int64)), probabilities * self.weight)


def positions_of(offsets: NDArray[np.int64], indices: NDArray[np.int64] | Sequence[int]) -> NDArray[np.int64]:
    """The places [N] int64 of pairs' positions among the P of their corpus, whose targets begin at `offsets`."""
    # Each pair before has one more position than symbols.
    return np.concatenate([np.arange(offsets[index], offsets[index + 1] + 1) + index for index in indices])


def open_soft_targets(folder: Path, offsets: NDArray[np.int64], config: DistillationConfig) -> CorpusSoftTargets | None:
    """The soft targets in a folder; None: there is no such folder. Raises UserError: its files are not of this corpus.

    Args:
        offsets: [number of pairs + 1] int64, where each pair's targets begin, without EOS.
    """
    if not folder.exists():
        return None
    num_positions = int(offsets[-1]) + len(offsets) - 1
    shape = (num_positions, -1)
    try:
        symbols = np.asarray(np.memmap(folder / SYMBOLS_FILE, np.int32, "r")).reshape(shape)
        probabilities = np.asarray(np.memmap(folder / PROBABILITIES_FILE, np.float16, "r")).reshape(symbols.shape)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}): remove it, and the teachers will be asked again") from None
    return CorpusSoftTargets(symbols, probabilities, offsets, config.weight)


def store_soft_targets(
    folder: Path,
    num_positions: int,
    num_symbols: int,
    said: Iterable[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]],
) -> None:
    """Writes a folder, whole or not at all.

    Args:
        num_positions: P; num_symbols: K.
        said: parts that together have every position once: positions [n], their symbols [n, K] and probabilities
            [n, K].
    """
    shape = (num_positions, num_symbols)
    with new_folder(folder, put=unless_there) as fresh:
        symbols = np.memmap(fresh / SYMBOLS_FILE, np.int32, "w+", shape=shape)
        probabilities = np.memmap(fresh / PROBABILITIES_FILE, np.float16, "w+", shape=shape)
        for places, ids, values in said:
            symbols[places], probabilities[places] = ids, values
        symbols.flush()
        probabilities.flush()
