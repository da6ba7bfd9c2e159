"""What is measured in process: a toolkit with a model, in so many worker processes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]

KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc keeps what is freed, in every system alike: CTranslate2 needs a quarter less processor time so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A way to decode.

    Attributes:
        name: of the table's row; no two are the same.
        command: of a worker process (job.py says what it must answer), run in the project's directory.
        num_workers: processes that share each job.
        environment: variables of the workers beside this process's own.
        batch_sizes: the ones tried; the fastest is the system's best setting.
        about: its version and how its model or its work differs from the others', for the page.
    """

    name: str
    command: Sequence[str]
    num_workers: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    batch_sizes: Sequence[int] = (64, 128)
    about: str = ""


def attendant(bundle: Path, precision: str, *, num_workers: int, num_threads: int) -> System:
    """Attendant's own decoding."""
    return _own("attendant", "Attendant", bundle, precision, num_workers, num_threads)


def bare_graphs(bundle: Path, precision: str, *, num_workers: int, num_threads: int) -> System:
    """The same calls into the graphs with nothing around them."""
    return _own("bare", "bare graphs", bundle, precision, num_workers, num_threads)


def _own(module: str, name: str, bundle: Path, precision: str, num_workers: int, num_threads: int) -> System:
    worker = f"benchmarks.decoding.{module}_worker"
    return System(
        name=f"{name} {precision}, {_counted(num_workers, 'worker')} x {_counted(num_threads, 'thread')}",
        command=(sys.executable, "-m", worker, str(bundle), precision, str(num_threads)),
        num_workers=num_workers,
        batch_sizes=(32, 64, 128, 256),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
