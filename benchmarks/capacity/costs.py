"""What the parts of a server cost, in seconds, and how such costs are read between the sizes that were measured."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from attendant.runtime.errors import UserError


def _in_order(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
        raise ValueError("must be ascending whole numbers from 1")
    return sizes


Sizes = Annotated[tuple[int, ...], AfterValidator(_in_order)]


class Grid(BaseModel):
    """Seconds by rows and source width; linear between the sizes, and on beyond the last one.

    Attributes:
        seconds: a line of widths for each number of rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: Sizes
    widths: Sizes
    seconds: tuple[tuple[float, ...], ...]

    def at(self, rows: float, width: float) -> float:
        """Seconds at a size between or beyond those that were measured."""
        below, row_share = _place(self.rows, rows)
        left, width_share = _place(self.widths, width)
        found = 0.0
        for row, of_row in ((below, 1 - row_share), (below + 1, row_share)):
            for column, of_column in ((left, 1 - width_share), (left + 1, width_share)):
                if of_row and of_column:
                    found += of_row * of_column * self.seconds[row][column]
        return max(0.0, found)


def _place(sizes: Sequence[int], size: float) -> tuple[int, float]:
    """Between which two sizes, and how far towards the second: above 1 beyond the last. A size below the first counts
    as the first.
    """
    if len(sizes) == 1 or size <= sizes[0]:
        return 0, 0.0
    place = min(bisect_left(sizes, size), len(sizes) - 1) - 1
    return place, (size - sizes[place]) / (sizes[place + 1] - sizes[place])


ALONE = 0.1
"""Of a core: what other programs may take beside a load."""


class Turn(BaseModel):
    """How a real server did once.

    Attributes:
        others_share: of a core, that programs beside it took: a load that was not alone says little.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    answered_per_second: float
    p50_ms: float
    p99_ms: float
    others_share: float


class Observed(BaseModel):
    """How a real server did, for comparison: with the lengths of real sentences, load generator on the same host.

    Attributes:
        clients: of a closed loop; 0: Poisson arrivals.
        rate: requests per second that were asked for; 0: a closed loop.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_workers: int
    num_cores: int
    clients: int
    rate: float
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]

    @property
    def alone(self) -> list[Turn]:
        """The turns in which nothing else ran; where there are none, the least disturbed one."""
        undisturbed = [turn for turn in self.turns if turn.others_share <= ALONE]
        return undisturbed or [min(self.turns, key=lambda turn: turn.others_share)]

    def __str__(self) -> str:
        load = f"{self.clients} clients" if self.clients else f"{self.rate:,.0f} requests/s at random"
        return f"--workers {self.num_workers}, {load}"


class Costs(BaseModel):
    """Of one engine and its server, with one model on one kind of host: what `measure` writes.

    Attributes:
        measured: which model, where and when.
        step: a decoder step of so many rows over sources so wide, search included, while requests come and go.
        encode: encoding so many sources of this width together.
        change: what a round takes beside its step where rows have left or joined, by rows.
        round_seconds: by the server's workers, what a round takes there beside that: messages, and caches that are
            shared with whoever handles them.
        call_seconds: processor time of the server's process for a request and its answer.
        generator_seconds: of the load generator, likewise: it shares the host where a simulation is compared with a
            measurement.
        observed: loads on servers, in turns with the costs.
        beside: by engines that run at the same time on one host, with nothing but decoding, how many times as long
            everything takes in each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    measured: str
    step: Grid
    encode: Grid
    change: Grid
    round_seconds: dict[int, float]
    call_seconds: float
    generator_seconds: float
    beside: dict[int, float]
    observed: tuple[Observed, ...] = ()


def between(known: Mapping[int, float], size: float) -> float:
    """Linear between the sizes; beyond them as at the nearest."""
    sizes = sorted(known)
    return float(np.interp(size, sizes, [known[one] for one in sizes]))


def read_costs(path: Path) -> Costs:
    """Raises UserError where the file is not what `measure` writes."""
    try:
        return Costs.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}; `measure` writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; `measure` writes it anew"
        ) from None
